// escrow/escrow.h by itself, as C99.
#include <escrow/escrow.h>

int header_alone(void) {
  return escrow_version();
}

// escrow/escrow.h by itself, as C++.
#include <escrow/escrow.h>

int header_alone_in_cpp() {
  return escrow_version();
}

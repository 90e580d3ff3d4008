// Which places an operation means when those that it names have not what it needs: the next ones.
#include <algorithm>

#include "world.hpp"

namespace escrow::test {

bool world::has_what_is_asked(char asked, std::size_t at, operation const& by) const {
  switch (asked) {
    case 'c':
      return capture_at(at).is_active();
    case 'i':
      return capture_at(at).is_none();
    case 'r':
      return std::ranges::any_of(captures_,
                                 [at](open_capture const& each) { return each.origin == at; });
    case 'g':
      return is_usable(at);
    case 'G':
      return !graphs_[at].is_there();
    case 'e':
      return execs_[at].is_there();
    case 'E':
      return !execs_[at].is_there();
    case 'l':
      return leases_[at].held.has_value();
    case 'L':
      return !leases_[at].held;
    case 'u':  // now and then another
      return is_usable(at) &&
             (by.arguments[2] == 3 || graphs_[at].serial == execs_[by.arguments[0]].made_of);
    case 'q':
      return is_there(nodes_[at]) && nodes_[at].serial == execs_[by.arguments[0]].made_of;
    case 'y':
      return libraries_[at].found.has_value();
    case 'Y':
      return !libraries_[at].found;
    case 'v':
      return events_there_[at] != nullptr;
    case 'V':
      return events_there_[at] == nullptr;
    case 'a':
      return allocations_[at].made.has_value();
    case 'A':
      return !allocations_[at].made;
    case 'b':
      return is_body_usable(bodies_[at]);
    case 'B':
      return !bodies_[at].own;
    case 'n':
      return is_there(nodes_[at]);
    case 'N':
      return !is_there(nodes_[at]);
    case 'h':
      return hoisted_[at].has_value();
    case 'H':
      return !hoisted_[at];
    case 'o':
      return owners_[at].share != nullptr;
    case 'O':
      return owners_[at].share == nullptr;
    case 'x':
      return shared_[at] != nullptr;
    case 'X':
      return shared_[at] == nullptr;
    case 'p':
      return pools_[at] != nullptr;
    case 'P':
      return pools_[at] == nullptr;
    default:
      return true;
  }
}

void world::resolve(operation& next) const {
  std::string_view const asked = spec_of(next.kind).arguments;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    unsigned const places = places_of(letter_of(asked[i]));
    for (unsigned tried = 0; tried < places; ++tried) {
      unsigned const place = (next.arguments[i] + tried) % places;
      // Two of a kind are not the same: a graph is not its own child.
      if (i == 1 && asked[0] == asked[1] && place == next.arguments[0] && tried + 1 < places)
        continue;
      if (!has_what_is_asked(asked[i], place, next)) continue;
      next.arguments[i] = static_cast<std::uint8_t>(place);
      break;
    }
  }
}

}  // namespace escrow::test

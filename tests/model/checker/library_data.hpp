// The statics of the library under test, which every execution finds as they were at first.
#pragma once

namespace escrow::model {

// Puts them back; the first call notes how they are.
void restore_library_data();

}  // namespace escrow::model

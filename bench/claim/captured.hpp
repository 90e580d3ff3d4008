// Claims in a stream capture.
#pragma once

#include "settings.hpp"

namespace escrow::bench {

// Registers claim/captured: each claim takes a slot that is free already and keeps it; and
// claim/captured_reuse: each claim takes the slot that the capture released before.
void register_captured(settings const& how);

}  // namespace escrow::bench

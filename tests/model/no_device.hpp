// The device behind the library under test.
#pragma once

namespace escrow::model {

// From now on the device answers so many questions about events by "not ready". For a setup.
void have_work_that_outlasts(int questions);

}  // namespace escrow::model

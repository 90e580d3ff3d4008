// Every call of every operation on graphs, execs and hoisted references fails once.
#include "every_call.hpp"
#include "exec_operations.hpp"

namespace escrow::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Of, EveryCall, testing::ValuesIn(exec_operations()), name_of);

}  // namespace
}  // namespace escrow::test

// SPDX-License-Identifier: Apache-2.0
// With ESCROW_MEMORY=apart it is known of small memory which parts of its pages are written.
#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <escrow/nodes/launch.hpp>
#include <escrow/sim.hpp>
#include <vector>

#include "deep.hpp"
#include "pool_world.hpp"

namespace escrow::test {
namespace {

[[maybe_unused]] int const is_asked = ::setenv("ESCROW_MEMORY", "apart", 1);  // before main()

void fill_on_host(int* to, std::size_t count, int value) {
  for (std::size_t i = 0; i < count; ++i) to[i] = value;
}
auto* const fill_ints = sim::register_kernel<&fill_on_host>("fill_ints");
void add_on_host(int* to, std::size_t count, int value) {
  for (std::size_t i = 0; i < count; ++i) to[i] += value;
}
auto* const add_to_ints = sim::register_kernel<&add_on_host>("add_to_ints");
void read_on_host(char const volatile* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 16) static_cast<void>(from[i]);
  static_cast<void>(from[bytes - 1]);
}
auto* const read_bytes = sim::register_kernel<&read_on_host>("read_bytes");
// With whatever the C library has for so many bytes; the value is that of unwritten memory.
void set_on_host(char* to, std::size_t bytes) {
  std::memset(to, 0xff, bytes);
}
auto* const set_bytes = sim::register_kernel<&set_on_host>("set_bytes");
void copy_on_host(char* to, char const* from, std::size_t bytes) {
  std::memmove(to, from, bytes);
}
auto* const copy_bytes = sim::register_kernel<&copy_on_host>("copy_bytes");

// Each writes all of it.
template <class T>
void write_each(std::byte* to, std::size_t bytes) {
  for (std::size_t at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
    *reinterpret_cast<T volatile*>(to + at) = T(-1);
  }
}
template <class T>
void exchange_each(std::byte* to, std::size_t bytes) {
  for (std::size_t at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
    std::atomic_ref<T>(*reinterpret_cast<T*>(to + at)).store(T(-1));
  }
}
template <class T>
void add_each(std::byte* to, std::size_t bytes) {
  for (std::size_t at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
    auto* const value = reinterpret_cast<T*>(to + at);
    *static_cast<T volatile*>(value) = T(1);
    std::atomic_ref<T>(*value).fetch_add(T(1));
    T expected = T(2);
    std::atomic_ref<T>(*value).compare_exchange_strong(expected, T(-1));
  }
}
constexpr std::array write_all{
    &write_each<std::int8_t>,     &write_each<std::int16_t>,    &write_each<std::int32_t>,
    &write_each<std::int64_t>,    &write_each<float>,           &write_each<double>,
    &exchange_each<std::int8_t>,  &exchange_each<std::int16_t>, &exchange_each<std::int32_t>,
    &exchange_each<std::int64_t>, &add_each<std::int8_t>,       &add_each<std::int16_t>,
    &add_each<std::int32_t>,      &add_each<std::int64_t>};
void write_on_host(std::byte* to, std::size_t bytes, std::size_t how) {
  write_all.at(how)(to, bytes);
}
auto* const write_bytes = sim::register_kernel<&write_on_host>("write_bytes");

class SmallMemory : public pool_world {
 protected:
  static constexpr std::size_t count = 256;
  static constexpr std::size_t bytes = count * sizeof(int);
  // A process of its own, since this one has threads.
  SmallMemory() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  static bool is_known_in_parts() {  // not on other processors, nor below a debugger
#if defined(__x86_64__)
    return !is_sanitized;
#else
    return false;
#endif
  }
  // The kernel reads all of it.
  void expect_told(buffer_lease<int>& lease) {
    EXPECT_DEATH(
        {
          launch(one, add_to_ints, {}, lease, count, 1);
          sync(one);
        },
        "kernel .add_to_ints. reads scratch of .blocks of 1024 bytes. at 0x.* that nothing has");
  }
  void read(auto& lease, std::size_t read) {
    launch(one, read_bytes, {}, reinterpret_cast<char const*>(lease.data()), read);
    sync(one);
  }

  scratch_pool scratch{options(16)};
};

// As by a count of elements in place of bytes.
TEST_F(SmallMemory, ToldOfWhatAFillOrACopyLeaves) {
  if (!is_known_in_parts()) return;
  auto lease = scratch.claim<int>(one, count);
  must(cudaMemsetAsync(lease.data(), 0, count, one));
  expect_told(lease);
  read(lease, count);
  std::vector<int> const from(count);
  must(cudaMemcpyAsync(lease.data() + count / 4, from.data(), bytes / 4, cudaMemcpyDefault, one));
  expect_told(lease);
  must(cudaMemcpyAsync(lease.data() + count / 2, from.data(), bytes / 2, cudaMemcpyDefault, one));
  launch(one, add_to_ints, {}, lease, count, 1);
  sync(one);
}

TEST_F(SmallMemory, ToldOfWhatAKernelLeaves) {
  if (!is_known_in_parts()) return;
  auto lease = scratch.claim<int>(one, count);
  launch(one, fill_ints, {}, lease, count / 2, 7);
  launch(one, add_to_ints, {}, lease, count / 2, 1);
  expect_told(lease);
  std::vector<int> copied(count);
  must(cudaMemcpyAsync(copied.data(), lease.data(), bytes, cudaMemcpyDefault, one));
  sync(one);
  EXPECT_EQ(copied.front(), 8);  // a copy may have what is not used
  EXPECT_EQ(copied.back(), -1);
  expect_told(lease);
  launch(one, fill_ints, {}, lease.data() + count / 2, count / 2, 7);
  launch(one, add_to_ints, {}, lease, count, 1);
  sync(one);
}

TEST_F(SmallMemory, IsWrittenByAnyInstruction) {
  for (std::size_t how = 0; how < write_all.size(); ++how) {
    auto lease = scratch.claim<std::byte>(one, bytes);
    launch(one, write_bytes, {}, lease, bytes, how);
    read(lease, bytes);
  }
  for (std::size_t size = 1; size <= 400; size += 3) {
    auto set = scratch.claim<char>(one, bytes);
    auto copied = scratch.claim<char>(one, bytes);
    for (std::size_t const at : {std::size_t{0}, size % 67}) {
      launch(one, set_bytes, {}, set.data() + at, size);
      launch(one, copy_bytes, {}, copied.data() + at, set.data() + at, size);
    }
    read(set, size);
    read(copied, size);
  }
}

// One may write while a page is open to the other.
TEST_F(SmallMemory, MayBeWrittenByTwoKernelsAtOnce) {
  for (int i = 0; i < 100; ++i) {
    auto lease = scratch.claim<int>(one, count);
    event claimed;
    claimed.ref().record(one);
    claimed.ref().wait(two);
    lease.record_stream(two);
    launch(one, fill_ints, {}, lease.data(), count / 2, i);
    launch(two, fill_ints, {}, lease.data() + count / 2, count / 2, i);
    std::array<int, count / 4> copied{};
    must(cudaMemcpyAsync(copied.data(), lease.data(), sizeof(copied), cudaMemcpyDefault, one));
    event filled;
    filled.ref().record(two);
    filled.ref().wait(one);
    launch(one, add_to_ints, {}, lease, count, 1);
    must(cudaMemcpyAsync(copied.data(), lease.data(), sizeof(copied), cudaMemcpyDefault, one));
    sync(one);
    EXPECT_EQ(copied.back(), i + 1);
  }
}

// A kernel that goes on and on counts as one that has written all.
TEST_F(SmallMemory, IsLookedAtForAWhile) {
  auto lease = scratch.claim<int>(one, count);
  launch(one, fill_ints, {}, lease, count / 2, 0);
  for (int i = 1; i <= 400; ++i) launch(one, add_to_ints, {}, lease, count / 2, 1);
  launch(one, add_to_ints, {}, lease, count, 1);
  sync(one);
}

}  // namespace
}  // namespace escrow::test

// SPDX-License-Identifier: Apache-2.0
// An exec, or a hoisted, that is a part of what its own graph keeps.
#include <atomic>
#include <escrow/deleter/shared_object.hpp>
#include <escrow/graph/exec_set.hpp>
#include <escrow/graph/hoist.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "audit_world.hpp"

namespace escrow::test {
namespace {

class OwnOwner : public audit_world {
 protected:
  ~OwnOwner() override {  // each session is destroyed, by the worker
    EXPECT_TRUE(deleter::global().drain_for(generous));
    EXPECT_EQ(alive, 0);
  }

  // A graph that keeps such an owner, as many do that need only a part of it.
  [[nodiscard]] graph keeping(auto owner) {
    return captured([&](cudaStream_t on) {
      must(launch_add(on, count.data(), 1));
      retain(on, std::move(owner));
    });
  }
  static instantiate_options audited(audit_use how = audit_use::yes) {
    instantiate_options options;
    options.audit = how;
    return options;
  }
  static void expect_refused(auto const& call, std::string const& what) {
    try {
      call();
      ADD_FAILURE() << "it was not refused";
    } catch (usage_error const& refused) {
      EXPECT_NE(std::string(refused.what()).find(what + " is a part of an owner"),
                std::string::npos)
          << refused.what();
    }
  }

  device_ints count;
  std::atomic<int> alive{0};
};

struct session {
  explicit session(std::atomic<int>& alive_sessions) : alive(alive_sessions) { ++alive; }
  session(session&&) = delete;
  ~session() { --alive; }

  std::atomic<int>& alive;
  std::optional<graph_exec> exec;
  std::optional<stream_launcher> launcher;
  std::optional<hoisted> held;
  exec_set set;
};

TEST_F(OwnOwner, IsRefusedAtTheLaunch) {
  auto const its = std::make_shared<session>(alive);
  its->exec.emplace(keeping(its), audited());
  expect_refused([&] { its->exec->launch(one); }, "the exec");
  expect_refused([&] { its->exec->launch_many(one, 2); }, "the exec");
  graph_exec apart = std::move(*its->exec);  // neither is a part of the other
  apart.launch(one);
  sync(one);
}

TEST_F(OwnOwner, IsRefusedWhereTheOwnerIsSharedWithStreams) {
  auto const its = make_stream_shared<session>(alive);
  graph const keeps = captured([&](cudaStream_t on) {
    must(launch_add(on, count.data(), 1));
    record_stream(its, on);
  });
  its->exec.emplace(keeps, audited());
  expect_refused([&] { its->exec->launch(one); }, "the exec");
  its->exec.reset();
}

TEST_F(OwnOwner, IsRefusedOfALauncherAndASet) {
  auto const its = std::make_shared<session>(alive);
  its->launcher.emplace(graph_exec(keeping(its), audited()), one);
  expect_refused([&] { its->launcher->launch(); }, "the exec");
  expect_refused([&] { its->launcher->launch_many(2); }, "the exec");
  its->launcher.reset();
  auto const member = its->set.add(keeping(its), audited());
  expect_refused([&] { its->set.launch(member, one); }, "the exec");
  its->set = exec_set();
}

struct session_with_a_pointer {
  explicit session_with_a_pointer(std::atomic<int>& alive_sessions) : alive(alive_sessions) {
    ++alive;
  }
  session_with_a_pointer(session_with_a_pointer&&) = delete;
  ~session_with_a_pointer() { --alive; }

  std::atomic<int>& alive;
  std::unique_ptr<graph_exec> exec;
};

TEST_F(OwnOwner, IsRefusedBehindAPointerOfIt) {
  auto const its = std::make_shared<session_with_a_pointer>(alive);
  its->exec = std::make_unique<graph_exec>(keeping(its), audited());
  expect_refused([&] { its->exec->launch(one); }, "the exec");
  its->exec.reset();
}

TEST_F(OwnOwner, IsNotRefusedWithoutAudits) {
  auto const its = std::make_shared<session>(alive);
  its->exec.emplace(keeping(its), audited(audit_use::no));
  its->exec->launch(one);
  sync(one);
  its->exec.reset();  // by hand
}

TEST_F(OwnOwner, IsNotSeenWhereAnotherObjectHasTheExec) {
  auto const its = std::make_shared<session>(alive);
  graph_exec beside(keeping(its), audited());
  beside.launch(one);
  sync(one);
}

#ifdef ESCROW_TEST_RUNTIME_SIM  // where it is so by default
TEST_F(OwnOwner, IsRefusedOfAHoisted) {
  auto const its = std::make_shared<session>(alive);
  graph const keeps = keeping(its);
  its->held.emplace(hoist(keeps));
  owned_exec const plain = instantiate(keeps.get());
  auto const launch = [&](stream_ref on) { return cudaGraphLaunch(plain, on.get()); };
  expect_refused([&] { its->held->launch(one, launch); }, "the hoisted");
  expect_refused([&] { its->held->release_at_end(one); }, "the hoisted");
  its->held->release();
}

TEST_F(OwnOwner, IsRefusedByDefault) {
  auto const its = std::make_shared<session>(alive);
  its->exec.emplace(keeping(its));
  expect_refused([&] { its->exec->launch(one); }, "the exec");
  its->exec.reset();
}
#endif

}  // namespace
}  // namespace escrow::test

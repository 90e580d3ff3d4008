// Launches that keep their arguments, and code that is loaded.
#pragma once

#include "build_stage.hpp"

namespace escrow::test {

inline void add_launches(operations_in<build_stage>& all) {
  auto const busy = [](build_stage& in) {
    must(launch_wait_flag(in.stream, in.flag.get()));
    in.at_end = [&in] { EXPECT_EQ(in.cells.load(), 4); };
  };
  auto const launch_it = [](build_stage& in) {
    launch_config config;
    config.deleter = &in.keeper;
    launch(in.stream, in.add, config, std::move(in.mine), 4);
  };
  all.add(
      "launch", runs({"launch"}),
      [=](auto& in) {
        busy(in);
        in.mine = in.unique_owner();
      },
      launch_it);
  all.add("launch, with nothing to keep", runs({"launch"}), busy,
          [](auto& in) { launch(in.stream, in.add, {}, in.cells.data(), 4); });
  all.add(
      "launch, of a shared argument", runs({"launch"}),
      [=](auto& in) {
        busy(in);
        in.shared = in.owner();
      },
      [](auto& in) {
        launch_config config;
        config.deleter = &in.keeper;
        launch(in.stream, in.add, config, in.shared, 4);
      });
  // "Eager, it is moved from only if the launch succeeds."
  all.add(
         "launch, in a capture", runs({"launch"}),
         [](auto& in) {
           in.mine = in.unique_owner();
           in.may_lose = true;
           in.scope.emplace(in.stream);
         },
         launch_it)
      .stated = {{"*", "in a capture, an argument is moved from before the launch"}};
}

inline void add_libraries(operations_in<build_stage>& all) {
  auto const load = [](build_stage& in) {
    in.loaded.emplace(library::load(library_code(), in.keeper));
  };
  all.add(
      "library, loaded", runs({"library::load"}), [](auto&) {}, load);
  all.add(
      "library, loaded from a file", runs({"library::load_file"}),
      [](auto&) { provide_library_file("faults.cubin"); },
      [](auto& in) { in.loaded.emplace(library::load_file("faults.cubin", in.keeper)); });
  auto const find = [](build_stage& in) { in.found.emplace(in.loaded->find("library_add")); };
  all.add("library, searched", runs({"library::find"}), load, find);
  all.add(
      "library, its kernel launched", runs({"launch"}),
      [=](auto& in) {
        load(in);
        find(in);
        in.loaded.reset();
        in.at_end = [&in] { EXPECT_EQ(in.cells.load(), 4); };
      },
      [](auto& in) {
        launch_config config;
        config.deleter = &in.keeper;
        launch(in.stream, *in.found, config, in.cells.data(), 4);
      });
  all.add(
      "library, its kernel in a node", runs({"graph_builder_ref::add"}),
      [=](auto& in) {
        load(in);
        find(in);
        in.loaded.reset();
        in.expected = 4;
      },
      [](auto& in) { build(*in.built).add(kernel_node(*in.found, {}, in.cells.data(), 4)); });
  all.add(
         "library, unloaded", runs({"library::load"}),
         [=](auto& in) {
           load(in);
           in.polls_when_seen = false;
           in.loaded.reset();
         },
         [](auto& in) { in.keeper.poll(); })
      .served_otherwise = {{"*", "what could not be reclaimed is at the next poll"}};
}

}  // namespace escrow::test

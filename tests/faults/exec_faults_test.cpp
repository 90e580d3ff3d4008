// SPDX-License-Identifier: Apache-2.0
// Every call of every operation on graphs, execs and hoisted references fails once.
#include "graph_stages.hpp"

namespace escrow::test {
namespace {

using rows = operations_in<exec_stage>;
using step = rows::step;

step exec_of(std::optional<graph> exec_stage::*source) {
  return [=](auto& in) { in.exec.emplace(*(in.*source)); };
}
step launched(std::optional<graph_exec> exec_stage::*which, owned_stream exec_stage::*stream,
              std::size_t owner = 0) {
  return [=](auto& in) { in.launch(*(in.*which), in.*stream, owner); };
}
step ended(auto exec_stage::*member) {
  return [=](auto& in) { (in.*member).reset(); };
}
step const exec = exec_of(&exec_stage::source);
step const exec_with_copies = [](auto& in) {
  in.exec.emplace(*in.source, instantiate_options{.copies = in.row});
};
step const launch_row = [](auto& in) {
  in.launch_row([&](std::size_t times) { in.exec->launch_many(in.one, times); });
};
step const rival = [](auto& in) { in.rival.emplace(*in.source); };
step const cloned = [](auto& in) { in.copy.emplace(in.source->clone()); };
step const second = [](auto& in) { in.second.emplace(in.captured_work(2)); };
step const parent = [](auto& in) {
  in.parent.emplace();
  in.parent->add_child(*in.source);
};
// Launches are recorded when something needs it.
step const late = [](auto& in) { in.make_late(); };
step const end_exec = ended(&exec_stage::exec);
step const end_source = [](auto& in) {
  in.source_holds = false;
  in.source.reset();
};
step const launch = launched(&exec_stage::exec, &exec_stage::one);
step const launch_rival = launched(&exec_stage::rival, &exec_stage::other);

void add_instantiates(rows& add) {
  auto const makes = runs("graph_exec::graph_exec");
  add("instantiate", makes, {}, exec);
  add("instantiate by handle", makes, {}, [](auto& in) { in.exec.emplace(in.source->get()); });
  add("instantiate with a bundle", makes, {rival}, exec);
  add("instantiate with a rival in flight", makes, {rival, launch_rival}, exec);
  add("instantiate with copies", makes, {}, exec_with_copies);
  add("instantiate a clone", makes, {cloned}, exec_of(&exec_stage::copy));
  step const second_child = [](auto& in) { in.parent->add_child(*in.second); };
  add("instantiate a parent", makes, {second, parent, second_child}, exec_of(&exec_stage::parent));
  step const plain_parent = [](auto& in) {
    in.plain = make_graph();
    test::add_child(in.plain, in.source->get());
    add_kernel(in.plain, tiny_call());
  };
  add("instantiate a plain parent", makes, {plain_parent},
      [](auto& in) { in.exec.emplace(in.plain.get()); });
  step const retire_more = [](auto& in) { in.worker->retire(in.source->get(), in.new_owner()); };
  add("instantiate after more was captured", makes, {rival, retire_more}, exec);
}

void add_launches(rows& add) {
  auto const launches = runs("graph_exec::launch");
  step const launch_on_other = launched(&exec_stage::exec, &exec_stage::other);
  step const rival_of_clone = [](auto& in) { in.rival.emplace(in.source->clone()); };
  add("launch", launches, {exec}, launch);
  add("launch again", launches, {exec, launch}, launch_on_other);
  add("launch behind a rival", launches, {exec, rival, launch_rival}, launch);
  add("launch behind a rival that ended", launches,
      {exec, rival_of_clone, launch_rival, ended(&exec_stage::rival)}, launch);
  add("launch behind a rival whose end is late", launches, {late, exec, rival, launch_rival},
      launch);
  auto const rows_of = runs("graph_exec::launch_many");
  add("launch a row", rows_of, {exec_with_copies}, launch_row);
  add("launch a row behind a rival", rows_of, {exec_with_copies, rival, launch_rival}, launch_row);
  step const upload = [](auto& in) { in.exec->upload(in.one); };
  add("upload", runs("graph_exec::upload"), {exec}, upload);
}

void add_updates(rows& add) {
  auto const updates = runs("graph_exec::update");
  auto const update_to = [](std::optional<graph> exec_stage::*source) -> step {
    return [=](auto& in) { in.exec->update(*(in.*source)); };
  };
  step const to_second = update_to(&exec_stage::second);
  step const rival_of_second = [](auto& in) { in.rival.emplace(*in.second); };
  add("update", updates, {second, exec}, to_second);
  add("update by handle", updates, {second, exec},
      [](auto& in) { in.exec->update(in.second->get()); });
  add("update to a bundle", updates,
      {second, exec, rival_of_second, launched(&exec_stage::rival, &exec_stage::other, 1)},
      to_second);
  add("update in flight", updates, {second, exec, launch}, to_second);
  add("update with copies in flight", updates, {second, exec_with_copies, launch_row}, to_second);
  add("update to the same in flight", updates, {exec, launch}, update_to(&exec_stage::source));
  add("update to a clone in flight", updates, {cloned, exec, launch}, update_to(&exec_stage::copy));
}

void add_ends(rows& add) {
  auto const ends = runs("graph_exec::~graph_exec");
  add("destroy idle", ends, {exec}, end_exec);
  add("destroy in flight", ends, {exec, launch}, end_exec);
  add("destroy in flight, with a late end", ends, {late, exec, launch}, end_exec);
  add("destroy a row in flight", ends, {exec_with_copies, launch_row}, end_exec);
  add("destroy in flight with a rival", ends, {exec, rival, launch_rival, launch}, end_exec);
  add("destroy the graph", runs("graph::~graph"), {exec, launch}, end_source);
}

void add_copies(rows& add) {
  auto const clones = runs("graph::clone");
  auto const adds = runs("graph::add_child");
  add("clone", clones, {}, cloned);
  add("clone with a bundle", clones, {exec}, cloned);
  add("clone a parent", clones, {parent}, [](auto& in) { in.copy.emplace(in.parent->clone()); });
  step const parent_with_kernel = [](auto& in) {
    in.parent.emplace();
    add_kernel(in.parent->get(), tiny_call());
  };
  add("add a child", adds, {parent_with_kernel},
      [](auto& in) { in.parent->add_child(*in.source); });
  step const copy_and_parent = [](auto& in) {
    in.copy.emplace();
    in.copy->add_child(*in.source);
    in.parent.emplace();
  };
  add("add a parent as child", adds, {copy_and_parent},
      [](auto& in) { in.parent->add_child(*in.copy); });
}

/// Execs with conditional nodes, whose end waits for their launches and uploads.
void add_conditionals(rows& add) {
  step const make = [](auto& in) {
    in.parent.emplace();
    conditional_node const chosen =
        build(*in.parent).add(if_node(build(*in.parent).make_condition(1)));
    add_kernel(chosen.body().get(), tiny_call());
  };
  step const instantiate_it = exec_of(&exec_stage::parent);
  step const launch_it = [](auto& in) { in.exec->launch(in.other); };
  step const upload_it = [](auto& in) { in.exec->upload(in.other); };
  step const upload_on_one = [](auto& in) { in.exec->upload(in.one); };
  auto const makes = runs("graph_exec::graph_exec");
  auto const uploads = runs("graph_exec::upload");
  auto const ends = runs("graph_exec::~graph_exec");
  add("instantiate with conditions", makes, {make}, instantiate_it);
  add("instantiate with conditions alone", makes, {make, end_source}, instantiate_it);
  add("update with conditions", runs("graph_exec::update"), {make, instantiate_it, launch_it},
      [](auto& in) { in.exec->update(*in.parent); });
  add("launch with conditions", runs("graph_exec::launch"), {make, instantiate_it}, launch_it);
  add("destroy with conditions", ends, {make, instantiate_it, launch_it}, end_exec);
  add("upload with conditions", uploads, {make, instantiate_it}, upload_it);
  rows::steps const uploaded{make, instantiate_it, launch_it, upload_on_one};
  add("upload again with conditions", uploads, uploaded, upload_it);
  add("destroy with conditions after an upload", ends, uploaded, end_exec);
}

void add_hoists(rows& add) {
  step const hoist_it = [](auto& in) {
    in.handle.emplace(hoist(*in.source));
    in.source_holds = false;
  };
  step const launch_hoisted = [](auto& in) {
    owned_exec const hoisted_exec = instantiate(in.source->get());
    must(cudaGraphLaunch(hoisted_exec, in.one));
    must(cudaEventRecord(in.event, in.one));
    in.in_flight.set(0);
    ++in.expected_runs;
  };
  step const instantiate_plainly = [](auto& in) { in.plain_exec = instantiate(in.source->get()); };
  auto const launch_on = [](owned_stream exec_stage::*stream) -> step {
    return [=](auto& in) {
      in.handle->launch(in.*stream, [&] {
        escrow::check(cudaGraphLaunch(in.plain_exec, in.*stream), "cudaGraphLaunch");
        in.in_flight.set(0);
        ++in.expected_runs;
      });
    };
  };
  step const launch_it = launch_on(&exec_stage::one);
  step const launch_elsewhere = launch_on(&exec_stage::other);
  auto const launches = runs("hoisted::launch");
  add("launch hoisted", launches, {rival, launch_rival, hoist_it, instantiate_plainly}, launch_it);
  add("launch hoisted again", launches,
      {rival, hoist_it, instantiate_plainly, launch_it, launch_rival}, launch_it);
  add("launch hoisted on another stream", launches, {hoist_it, instantiate_plainly, launch_it},
      launch_elsewhere);
  auto const releases = runs("hoisted::release_after");
  add("hoist", runs("hoist"), {}, hoist_it);
  add("hoist with a rival", runs("hoist"), {rival, launch_rival}, hoist_it);
  add("release after the stream", releases, {hoist_it, launch_hoisted},
      [](auto& in) { in.handle->release_after(stream_ref(in.one)); });
  add("release after another stream", releases, {hoist_it, instantiate_plainly, launch_elsewhere},
      [](auto& in) { in.handle->release_after(stream_ref(in.one)); });
  add("release after an event", releases, {hoist_it, launch_hoisted},
      [](auto& in) { in.handle->release_after(event_ref(in.event)); });
  add("release at the end", runs("hoisted::release_at_end"), {hoist_it, launch_hoisted},
      [](auto& in) {
        if (!in.handle) return;  // in the second try there is nothing left to release
        in.handle->release_at_end(in.one);
        in.handle.reset();
      });
  step const release_it = [](auto& in) { in.handle->release(); };
  add("release now", runs("hoisted::release"), {hoist_it}, release_it);
  add("release now in flight", runs("hoisted::release"), {hoist_it, instantiate_plainly, launch_it},
      release_it);
  add("hoisted, what it holds", runs("hoisted::held"), {hoist_it},
      [](auto& in) { EXPECT_EQ(in.handle->held().owners, 1U); });
}

/// Audits of nodes of each kind that has addresses, in a child graph, too, and of what is freed.
/// Elsewhere no node has one: it may be where other memory was, and then CUDA is asked about it.
void add_audits(rows& add) {
  auto const audits = runs("audit");
  step const kinds = [](auto& in) {
    in.copy.emplace();
    cudaGraph_t const to = in.copy->get();
    add_kernel(to, sleep_call(1));
    cudaMemsetParams no_fill{};
    no_fill.elementSize = 1;
    cudaMemcpy3DParms no_copy{};
    no_copy.kind = cudaMemcpyDefault;
    cudaGraphNode_t node = nullptr;
    must(cudaGraphAddMemsetNode(&node, to, nullptr, 0, &no_fill));
    must(cudaGraphAddMemcpyNode(&node, to, nullptr, 0, &no_copy));
    in.parent.emplace();
    in.parent->add_child(*in.copy);
  };
  step const stale = [](auto& in) {
    std::optional<device_buffer<int>> buffer(64);
    auto* const freed = buffer->data();
    buffer.reset();
    in.parent.emplace();
    add_kernel(in.parent->get(), add_call(freed, 1));
  };
  statements const with_fewer{{"cuFuncGetParamInfo", "what CUDA does not tell is not audited"}};
  auto const add_audit = [&](char const* name, step before, step of) {
    add(name, audits, {std::move(before)}, std::move(of)).served_otherwise = with_fewer;
  };
  add_audit("audit", kinds, [](auto& in) { in.answer = describe(audit(*in.parent)); });
  add_audit("audit by a handle", kinds,
            [](auto& in) { in.answer = describe(audit(in.copy->get())); });
  add_audit("audit of what is freed", stale,
            [](auto& in) { in.answer = std::to_string(audit(*in.parent).size()); });
  add("instantiate with an audit", runs("graph_exec::graph_exec"), {kinds}, [](auto& in) {
    in.exec.emplace(*in.parent, instantiate_options{.audit = audit_use::yes});
  }).served_otherwise = with_fewer;
}

void add_launchers(rows& add) {
  step const bind = [](auto& in) { in.launcher.emplace(std::move(*in.exec), in.one); };
  step const launch_it = [](auto& in) { in.launch_by_launcher(); };
  step const end_it = ended(&exec_stage::launcher);
  auto const launches = runs("stream_launcher::launch");
  auto const flushes = runs("stream_launcher::flush");
  auto const ends = runs("stream_launcher::~stream_launcher");
  add("bind a launcher", runs("stream_launcher::stream_launcher"), {exec, launch}, bind);
  add("launch by a launcher", launches, {exec, bind}, launch_it);
  add("launch a row by a launcher", runs("stream_launcher::launch_many"), {exec_with_copies, bind},
      [](auto& in) { in.launch_row([&](std::size_t times) { in.launcher->launch_many(times); }); });
  add("launch by a launcher again", launches, {exec, bind, launch_it}, launch_it);
  add("launch by a launcher behind a rival", launches, {exec, rival, launch_rival, bind},
      launch_it);
  add("flush a launcher", flushes, {exec, bind, launch_it}, [](auto& in) { in.launcher->flush(); });
  add("launch behind a launcher", runs("graph_exec::launch"),
      {exec, bind, launch_it, rival, [](auto& in) { in.launcher->flush(); }}, launch_rival);
  add("release from a launcher", runs("stream_launcher::release"), {exec, bind, launch_it},
      [](auto& in) { in.exec.emplace(in.launcher->release()); });
  add("destroy a launcher idle", ends, {exec, bind}, end_it);
  add("destroy a launcher in flight", ends, {exec, bind, launch_it}, end_it);
}

/// Sets: of `second`, and of a graph like it.
void add_sets(rows& add) {
  auto const adds = runs("exec_set::add");
  auto const launches = runs("exec_set::launch");
  step const add_second = [](auto& in) { in.add_member(in.second); };
  step const third = [](auto& in) { in.copy.emplace(in.captured_work(3)); };
  step const add_third = [](auto& in) { in.add_member(in.copy); };
  step const add_parent = [](auto& in) { in.add_member(in.parent); };
  step const rival_of_second = [](auto& in) { in.rival.emplace(*in.second); };
  step const launch_second = [](auto& in) { in.launch_member(0, in.one, 1); };
  step const launch_third = [](auto& in) { in.launch_member(1, in.other, 2); };
  rows::steps const two_members{second, add_second, third, add_third};
  auto const with = [](rows::steps steps, std::initializer_list<step> more) {
    steps.insert(steps.end(), more);
    return steps;
  };
  auto const add_adding = [&](char const* name, rows::steps before, step const& act) {
    operation& row = add(name, adds, std::move(before), act);
    row.served_otherwise = {
        {"cuGraphKernelNodeGetAttribute", "what CUDA does not tell is a difference"},
        {"cudaGraphExecUpdate", "a graph that an update cannot change gets its own exec"}};
    row.ways_to_end = 2;  // it makes many calls
  };
  add("set, made", runs("exec_set::exec_set"), {}, [](auto& in) { in.set.emplace(); });
  add_adding("set, add the first", {second}, add_second);
  add_adding("set, add another", {second, add_second, third}, add_third);
  add_adding("set, add in flight", {second, add_second, third, launch_second}, add_third);
  add_adding("set, add with a rival", {second, rival_of_second}, add_second);
  add_adding("set, add another shape", {second, add_second, parent}, add_parent);
  add("set, launch", launches, two_members, launch_third);
  add("set, launch another", launches, two_members, launch_second);
  add("set, launch another in flight", launches, with(two_members, {launch_second}), launch_third);
  add("set, launch behind a rival", launches,
      {second, rival_of_second, add_second, third, add_third,
       launched(&exec_stage::rival, &exec_stage::other, 1)},
      launch_second);
  add("set, what it holds", runs("exec_set::held"), two_members,
      [](auto& in) { EXPECT_EQ(in.set->held().owners, 2U); });
  add("set, its counts", runs("exec_set::stats"), {second, add_second, parent, add_parent},
      [](auto& in) { EXPECT_EQ(in.set->stats().reasons.size(), 1U); });
  auto const ends = runs("exec_set::~exec_set");
  step const end_set = ended(&exec_stage::set);
  add("set, destroy idle", ends, two_members, end_set);
  add("set, destroy in flight", ends, with(two_members, {launch_second, launch_third}), end_set);
}

/// What execs have released, before and after their launches are done.
void add_reclaims(rows& add) {
  step const finish = [](auto& in) {
    in.flag.raise();
    must(cudaStreamSynchronize(in.one));
    sim::run_until_idle();
    in.in_flight.reset();
  };
  auto const add_poll = [&](char const* name, rows::steps before) {
    add(name, runs("deleter::poll"), std::move(before), poll).served_otherwise = at_next_poll;
  };
  add_poll("poll, an exec ended in flight", {exec, launch, end_exec});
  add_poll("poll, an exec ended and done", {exec, launch, end_exec, finish});
  add_poll("poll, an exec and its graph ended and done",
           {exec, launch, end_exec, end_source, finish});
}

/// Each ends in three ways, unless it says otherwise.
std::vector<operation> operations() {
  auto all =
      rows::of({add_instantiates, add_launches, add_updates, add_ends, add_copies, add_conditionals,
                add_hoists, add_audits, add_launchers, add_sets, add_reclaims});
  for (operation& each : all) each.ways_to_end = each.ways_to_end == 1 ? 3 : each.ways_to_end;
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, EveryCall, testing::ValuesIn(operations()), name_of);

}  // namespace
}  // namespace escrow::test

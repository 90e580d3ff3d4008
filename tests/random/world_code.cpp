// Code that is loaded at run time, and the remaining ways to call the library.
#include <algorithm>
#include <escrow/sim.hpp>
#include <stdexcept>

#include "attempt.hpp"

namespace escrow::test {

namespace {

void const* code() {
  static sim::library_image const* const image = [] {
    auto* const made = new sim::library_image;
    made->add("work", run_of_work(), {sizeof(piece_of_work*), sizeof(int)});
    return made;
  }();
  return image->code();
}

struct thrown_in_a_capture : std::runtime_error {
  thrown_in_a_capture() : runtime_error("thrown while a stream is captured") {}
};

}  // namespace

outcome world::do_load_library(std::size_t y) {
  if (libraries_[y].found) return outcome::skipped;
  library_place& place = libraries_[y];
  outcome const result = attempt(is_stopped_, false, [&] {
    library const loaded = library::load(code(), *worker_);
    place.found.emplace(loaded.find("work"));
  });
  if (result != outcome::done) return result;
  place.thing = all_.make_bare(reference::kind::owner);
  all_.model.state_of(place.thing).handles = 1;
  if (!kept_code_.emplace(place.found->get(), place.thing).second)
    all_.fail("a new kernel has the handle of one that is there");
  code_shares_.insert_or_assign(place.found->get(), place.found->library());
  return result;
}

outcome world::do_unload_library(std::size_t y) {
  library_place& place = libraries_[y];
  if (!place.found) return outcome::skipped;
  all_.model.state_of(place.thing).handles = 0;
  if (all_.model.is_pending(place.thing)) counts_.meet(situation::code_dropped_while_it_runs);
  place.found.reset();
  return outcome::done;
}

outcome world::do_launch_code(std::size_t s, std::size_t y) {
  library_place const& place = libraries_[y];
  if (!place.found) return outcome::skipped;
  capture_state const capture = capture_at(s);
  piece_of_work& work = piece(s, {place.thing});
  launch_config chosen;
  chosen.deleter = worker_.get();
  hand_to_stream(place.thing, s, work);
  outcome const result = attempt(capture.is_invalid() || is_stopped_ || is_blocked(s), false, [&] {
    launch(streams_[s].handle, *place.found, chosen, &work, work.rounds);
  });
  if (result == outcome::done) {
    note_use(s, work);
    return result;
  }
  all_.model.set_mark(work.mark);
  if (capture.is_active()) doubt_last(all_.model.capture_of(capture.id));
  return result;
}

outcome world::do_add_node_of_code(std::size_t n, std::size_t g, std::size_t y) {
  graph_place& in = graphs_[g];
  library_place const& place = libraries_[y];
  if (!is_usable(g) || !in.is_built || !place.found) return outcome::skipped;
  piece_of_work& work = all_.add_work();
  work.uses.push_back({place.thing});
  node made;
  outcome const result = attempt(is_stopped_, false, [&] {
    made = build(*in.own).add(kernel_node(*place.found, {}, &work, work.rounds));
  });
  if (result != outcome::done) return result;
  entries const kept{{.thing = place.thing}};
  note_node(n, g, made, kept, node_kind::kernel);
  counts_.meet(situation::code_kept_by_a_node);
  return result;
}

outcome world::do_set_node_of_code(std::size_t n, std::size_t y) {
  node_place& at = nodes_[n];
  library_place const& place = libraries_[y];
  if (!is_there(at) || at.is != node_kind::kernel || !place.found) return outcome::skipped;
  piece_of_work& work = all_.add_work();
  work.uses.push_back({place.thing});
  entries const old = begin_set(at);
  outcome const result = attempt(is_stopped_, false, [&] {
    at.handle.set(kernel_node(*place.found, {}, &work, work.rounds));
  });
  end_set(at, old, result == outcome::done);
  entries const kept{{.thing = place.thing}};
  if (result == outcome::done) note_set(at, kept);
  return result;
}

outcome world::do_exec_set_of_code(std::size_t e, std::size_t n, std::size_t y) {
  exec_place& place = execs_[e];
  node_place const& at = nodes_[n];
  library_place const& loaded = libraries_[y];
  if (!may_set(place, at) || at.is != node_kind::kernel || !loaded.found) return outcome::skipped;
  piece_of_work& work = all_.add_work();
  work.uses.push_back({loaded.thing});
  entries const old = begin_exec_set(e, at);
  outcome const result = attempt(true, true, [&] {
    escrow::set(*place.own, at.handle, kernel_node(*loaded.found, {}, &work, work.rounds));
  });
  entries const kept{{.thing = loaded.thing}};
  end_exec_set(e, at, old, kept, result == outcome::done);
  return result;
}

outcome world::do_upload(std::size_t e, std::size_t s) {
  exec_place& place = execs_[e];
  bool const is_free = capture_at(s).is_none() && !is_blocked(s);
  if (!place.own || !is_free || lost_[0] || lost_[1]) return outcome::skipped;
  return attempt(false, false, [&] { place.own->upload(streams_[s].handle); });
}

// capture(): ways 0 and 1: an owner is retired in it; 2: a slot is claimed and released; 3: it
// throws after that.
outcome world::do_capture_call(std::size_t s, std::size_t g, unsigned way) {
  bool const is_free = capture_at(s).is_none() && is_own_stream(s);
  if (!is_free || graphs_[g].is_there() || lost_[0] || lost_[1]) return outcome::skipped;
  open_capture opened{};
  outcome inside = outcome::skipped;
  std::optional<graph> made;
  try {
    made.emplace(capture(streams_[s].handle, [&](stream_ref) {
      opened = {capture_at(s).id, s, thread_, false, std::nullopt};
      captures_.push_back(opened);
      inside = way < 2 ? do_retire(s) : claim_and_release_on(s);
      if (way == 3) throw thrown_in_a_capture();
    }));
  } catch (thrown_in_a_capture const&) {
    counts_.meet(situation::capture_left_by_an_exception);
  } catch (std::exception const& error) {
    all_.fail(std::string("a capture ended for no reason: ") + error.what());
  }
  std::erase_if(captures_, [&](open_capture const& each) { return each.id == opened.id; });
  if (!made) {
    all_.model.forget_capture(opened.id);
    return outcome::refused;
  }
  if (made->id() != opened.id) all_.fail("a graph does not know its capture's id");
  take_captured(opened, made->detach(), g, true);
  return inside == outcome::done ? outcome::done : inside;
}

/// What may be moved, moved away and back.
outcome world::do_move(std::size_t g, std::size_t e) {
  if (graphs_[g].own) {
    graph moved(std::move(*graphs_[g].own));
    *graphs_[g].own = std::move(moved);
  }
  if (execs_[e].own) {
    graph_exec moved(std::move(*execs_[e].own));
    *execs_[e].own = std::move(moved);
  }
  for (auto& each : hoisted_) {
    if (!each) continue;
    hoisted moved(std::move(*each));
    *each = std::move(moved);
  }
  if (scratch_) {
    scratch_pool moved(std::move(*scratch_));
    *scratch_ = std::move(moved);
  }
  for (lease_place& each : leases_) {
    if (!each.held) continue;
    held_lease moved(std::move(*each.held));
    *each.held = std::move(moved);
  }
  return outcome::done;
}

}  // namespace escrow::test

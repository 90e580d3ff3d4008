"""The figures: what each is computed from, its goal, and its place in the tables of docs/performance.md.

A figure is a function of measurements `m`, where m(benchmark, field) is the median of a counter or of the
time. Its noise is the same of two things that do not differ. A note is text, or a function of `m`.
"""
from types import SimpleNamespace

NO_GOAL = "none"


def figure(name, word, goal, unit, program, value, noise=None, note=None):
    """`word` sets the figure apart from the others in its row."""
    return SimpleNamespace(name=name, word=word, goal=goal, unit=unit, program=f"{program}_bench", value=value,
                           noise=noise, note=note)


def of(benchmark, field="time"):
    return lambda m: m(benchmark, field)


def ratio(benchmark, other, field="time"):
    return lambda m: m(benchmark, field) / m(other, field)


def difference(benchmark, other, field="time"):
    return lambda m: m(benchmark, field) - m(other, field)


def in_turns(name, word, goal, field, size, note, form="escrow"):
    """A form's share of the bare graph's figure, which it took turns with."""
    return figure(name, word, goal, "ratio", "relaunch", of(f"relaunch/{form}/{size}", field),
                  of(f"relaunch/bare_again/{size}", field), note)


def likeness(m, size):
    """Whether a graph that Escrow captured has the same nodes and edges as the bare one."""
    def words(form):
        facts = {key: int(value) for key, value in sorted(m.fields(f"relaunch/{form}/{size}").items())
                 if key.startswith("nodes_") or key == "edges"}
        edges = facts.pop("edges", 0)
        return facts and ", ".join([f"{count} {key[6:]} nodes" for key, count in facts.items()] + [f"{edges} edges"])

    bare, ours = words("bare"), words("escrow")
    if not bare or not ours:
        return ""
    if bare == ours:
        return f"both graphs have {bare}: the timing is an A/A test of the same graph"
    return f"the graphs differ: bare has {bare}, escrow has {ours}"


def over_launches(benchmark, rest):
    return lambda m: (f"host time per launch over {m(benchmark, 'host_launches'):.0f} launches from an idle "
                      f"stream; {rest}")


SIZES = {**{f"k{n}": f"kernels:{n}" for n in (1, 8, 64, 512)}, "fork4": "fork4"}
KERNELS = {word: size for word, size in SIZES.items() if word != "fork4"}
BURSTS = "host time per launch in bursts of 16, which do not block the host"
USER, OURS = "relaunch/user_object/kernels:", "relaunch/escrow/kernels:"
CHAIN = "nodes:10000"


def host(name, word, size, form="escrow", goal="<= 1.25"):
    note = over_launches(f"relaunch/{form}/{size}", "neither graph blocks the host")
    return in_turns(f"relaunch_host_{name}", word, goal, "host_of_bare", size, note, form)


def build_note(m):
    def ns(form, *fields):
        return ", ".join(f"{field} {m(f'build/{form}/{CHAIN}', field):.0f}" for field in fields)

    others = ", ".join(f"{form} {m(f'build/{form}/{CHAIN}', 'of_bare'):.3g}"
                       for form in ("escrow_warm", "escrow_no_owners", "user_objects"))
    return f"per node: {ns('escrow', 'build_ns', 'bare_build_ns', 'seal_ns', 'destroy_ns', 'bare_destroy_ns')}; " \
           f"others over bare: {others}"


def cuda_core_note(m):
    """Why there is nothing, if there is nothing."""
    if m.fields(f"build/cuda_core/{CHAIN}"):
        return "from Python, whose own time is in it"
    return next((problem for problem in m.problems if problem.startswith("cuda_core_build")),
                "Python's cuda.core was not run")


def eager(name, benchmark):
    return figure(name, "", "<= 1", "us", "capture", of(benchmark, "escrow_us"),
                  note=lambda m: f"{m(benchmark, 'extra_us'):.3g} us of it beyond the floor")


def claims(branches, count):
    return f"capture/claim/branches:{branches}/claims:{count}"


def family(name, word, goal, field, way, pattern):
    """A way's share of plain launches of 64 graphs over one arena, which it took turns with."""
    return figure(name, word, goal, "ratio", "footprint", of(f"{pattern}/{way}/graphs:64", field),
                  of(f"{pattern}/arena_again/graphs:64", field))


def families(word, goal, field):
    """The same for graphs in random order and for one graph at a time, and for memory nodes."""
    return [family(f"alternating_{word}", "any order", goal, field, "shared", "footprint"),
            family(f"repeating_{word}", "each for long", goal, field, "shared", "footprint_long"),
            family(f"memory_nodes_{word}", "memory nodes", NO_GOAL, field, "memory_nodes", "footprint")]


def device_bytes(way):
    return lambda m: (m(f"footprint/{way}/graphs:64", "device_kib") /
                      m(f"footprint/{way}/graphs:64", "scratch_kib"))


def mixed(name, word, goal, way):
    return figure(name, word, goal, "ratio", "footprint", of(f"footprint_mixed/{way}", "over_best"))


def exec_sets(name, form, goal, kernels):
    return figure(f"{name}_k{kernels}", f"{kernels} kernels", goal, "ratio", "footprint",
                  of(f"exec_set/{form}/kernels:{kernels}", "host_of_bare"))


def races(name, word, goal, way, streams):
    benchmark = f"footprint_races/{way}/streams:{streams}"
    return figure(name, word, goal, "values", "footprint", of(benchmark, "wrong_values"),
                  note=lambda m: f"in {m(benchmark, 'launches'):,.0f} launches")


def load(threads, streams=1, migrating=0):
    """The benchmark of all arms of claims in turns: streams are of each thread, migrating is percent."""
    return f"claim/threads:{threads}/streams:{streams}/migrating:{migrating}"


def arms(name, word, goal, share, benchmark, note=None):
    """An arm's time over another's, in the same rounds."""
    return figure(name, word, goal, "ratio", "claim", of(benchmark, share), note=note)


def resources(name, word, goal, pattern, arm):
    """A memory resource's time over that of Escrow's, in the same rounds, on 8 threads."""
    return figure(name, word, goal, "ratio", "resource", of(f"resource/{pattern}/threads:8/streams:1", f"{arm}_of_escrow"))


def steal_note(m):
    return f"one slot for two streams in turn; without claimers {m('claim_turns/escrow_steal_over_escrow_on_first_stream/on_threads:1', 'of_base'):.3g}"


THREADS, BRANCHES = {1: "1 thread", 8: "8 threads"}, {1: "1 branch", 16: "16 branches"}

# The tables: what a row says, and the figures in it.
TABLES = {
    "gpu": [
        ("launches/s in a long row, over the bare graph's",
         [in_turns(f"relaunch_throughput_{word}", word, ">= 0.99", "throughput_of_bare", size,
                   lambda m, size=size: likeness(m, size)) for word, size in SIZES.items()]),
        ("the same by a stream_launcher",
         [in_turns("relaunch_throughput_lazy_k1", "k1", ">= 0.99", "throughput_of_bare", SIZES["k1"], None, "lazy")]),
        ("CUDA's user object adds to each launch in a long row",
         [figure(f"user_object_row_extra_us_k{n}", f"k{n}", NO_GOAL, "us", "relaunch",
                 lambda m, n=n: m(f"{USER}{n}") - m(f"{USER}{n}", "bare_us"),
                 note="time per launch in a long row, beyond the bare graph's") for n in (8, 64, 512)]),
    ],
    "host": [
        ("in bursts of 16 launches, over the bare graph's",
         [in_turns(f"relaunch_burst_{word}", word, NO_GOAL, "host_burst_of_bare", size, BURSTS)
          for word, size in KERNELS.items()]),
        ("over 200 launches (k512: 32), over the bare graph's; neither blocks",
         [host(word, word, size) for word, size in KERNELS.items()]),
        ("the same by a stream_launcher",
         [host(f"lazy_{word}", word, size, "lazy", "<= 1.05") for word, size in KERNELS.items() if word != "k512"]),
        ("the same with 4,096 owners in the graph",
         [host("4096_objects", "k8", "kernels:8", "escrow_4096_objects")]),
        ("in bursts of 16, CUDA's user object over Escrow",
         [figure(f"user_object_over_escrow_burst_k{n}", f"k{n}", NO_GOAL, "ratio", "relaunch",
                 ratio(f"{USER}{n}", f"{OURS}{n}", "host_burst_us"), note=BURSTS) for n in (8, 64)]),
    ],
    "limit": [
        ("launches in flight before the host blocks, Escrow",
         [figure("run_ahead", "", "> 1000", "launches", "relaunch", of("run_ahead/escrow", "launches"),
                 of("run_ahead/bare", "launches"), "A/A is the bare graph's")]),
        ("the same with CUDA's user object",
         [figure("user_object_run_ahead", "", NO_GOAL, "launches", "relaunch",
                 of("run_ahead/user_object", "launches"))]),
        ("host time over 200 launches, mostly blocking: CUDA's user object over Escrow",
         [figure(f"user_object_over_escrow_host_k{n}", f"k{n}", goal, "ratio", "relaunch",
                 ratio(f"{USER}{n}", f"{OURS}{n}", "host_us"),
                 note=over_launches(f"{USER}{n}", "with a user object it is mostly blocking"))
          for n, goal in ((8, ">= 5"), (64, ">= 25"))]),
    ],
    "threads": [
        ("launches/s of 12 threads, each with its own exec of 8 kernels, over the bare graph's",
         [figure("relaunch_threads12", "", ">= 0.97", "ratio", "relaunch",
                 of("threads12/escrow", "throughput_of_bare"), of("threads12/bare_again", "throughput_of_bare"))]),
        ("the same with CUDA's user object",
         [figure("user_object_threads12", "", NO_GOAL, "ratio", "relaunch",
                 of("threads12/user_object", "throughput_of_bare"))]),
        ("p99.9 of a launch while other threads create and destroy graphs, over the bare graph's",
         [figure("interference_p999", "", "<= 1.5", "ratio", "relaunch", of("interference/escrow", "p999_of_bare"),
                 of("interference/bare_again", "p999_of_bare"))]),
    ],
    "claim": [
        ("claim and release over the floor",
         [figure(f"claim_over_floor_{n}t", word, "<= 1.3", "ratio", "claim",
                 of(f"claim_turns/escrow_over_floor/on_threads:{n}", "of_base"))
          for n, word in THREADS.items()]),
        ("claim and release by a claimer, over capture query and stream id",
         [arms(f"local_pair_over_queries_{n}t", word, goal, "local_of_queries", load(n))
          for n, word, goal in ((1, "1 thread", "<= 1.5"), (8, "8 threads", "<= 2"), (16, "16 threads", "<= 2"))]),
        ("PyTorch's caching allocator over a claimer",
         [arms(f"pytorch_over_local_{n}t", word, goal, "pytorch_of_local", load(n))
          for (n, word), goal in zip(THREADS.items(), (">= 2", ">= 50"))]),
        ("RMM, the faster of its pool and fixed-size resources, over a claimer",
         [figure("rmm_over_local_8t", "8 threads", ">= 50", "ratio", "claim",
                 lambda m: min(m(load(8), f"rmm_{which}_of_local") for which in ("pool", "fixed_size")))]),
        ("`cub::CachingDeviceAllocator` over claim and release",
         [arms(f"cub_over_claim_{n}t", word, goal, "cub_of_escrow", load(n))
          for (n, word), goal in zip(THREADS.items(), (">= 1.0", ">= 2.0"))]),
        ("claim by a claimer that takes what another one released, over claim and release",
         [arms("steal_over_eager", "", "<= 1.5", "of_base", "claim_turns/steal_over_escrow_on_first_stream/on_threads:1", steal_note)]),
        ("claim by a claimer and release on another stream, over the same without a claimer, 8 threads",
         [arms("migrate100_over_eager", "", "<= 1.1", "local_of_escrow", load(8, 4, 100))]),
        ("claim and release by size, over claim and release",
         [figure(f"scratch_claim_over_pool_{n}t", word, "<= 1.15", "ratio", "claim",
                 of(f"claim_turns/scratch_over_escrow/on_threads:{n}", "of_base"))
          for n, word in THREADS.items()]),
        ("memory that claims by size get, over what they ask for, in an inference trace",
         [figure("scratch_overhead_bytes", "", "<= 1.25", "ratio", "claim",
                 of("claim/scratch_memory", "over_asked"))]),
        ("idle memory that `trim()` gives back to the device",
         [figure("trim_returns", "", "= 1", "ratio", "claim", of("claim/scratch_memory", "device_of_idle"),
                 note=lambda m: f"by cudaMemGetInfo; {m('claim/scratch_memory', 'trim_of_idle'):.3g} by its own count")]),
        ("claim and release with 16,384 idle free slots",
         [eager("claim_16384_idle_us", "capture/eager/free_idle:16384")]),
        ("claim and release, 1,024 streams in turn", [eager("claim_1024_streams_us", "capture/eager/streams:1024")]),
    ],
    "resource": [
        ("allocation and deallocation through `memory_resource`, over claim and release of its pool",
         [figure("mr_claim_over_pool_1t", "1 thread", "<= 1.2", "ratio", "resource",
                 of("resource_turns/escrow_over_scratch/on_threads:1", "of_base"))]),
        ("RMM's resources over Escrow's, memory of one size, 8 threads",
         [resources("rmm_pool_over_escrow_8t", "pool", ">= 2", "pairs", "rmm_pool"),
          *(resources(f"rmm_{arm}_over_escrow_8t", arm.replace("_", " "), NO_GOAL, "pairs", f"rmm_{arm}")
            for arm in ("pool_on_escrow", "arena", "cuda_async"))]),
        ("the same, memory of random sizes",
         [resources(f"rmm_{arm}_over_escrow_random_8t", arm.replace("_", " "), NO_GOAL, "random", f"rmm_{arm}")
          for arm in ("pool", "pool_on_escrow", "arena", "cuda_async")]),
        ("nodes that allocate or free, in a graph with a reduction of CUB",
         [figure("cub_memory_nodes", "Escrow's resource", "= 0", "nodes", "resource",
                 of("cub_relaunch/escrow", "memory_nodes")),
          figure("cub_default_memory_nodes", "CUB's default", NO_GOAL, "nodes", "resource",
                 of("cub_relaunch/memory_nodes", "memory_nodes"))]),
        ("launches/s of that graph, over the same with scratch allocated beforehand",
         [figure("cub_relaunch_throughput", "Escrow's resource", ">= 0.99", "ratio", "resource",
                 of("cub_relaunch/escrow", "throughput_of_bare"), of("cub_relaunch/bare_again", "throughput_of_bare")),
          figure("cub_default_relaunch_throughput", "CUB's default", NO_GOAL, "ratio", "resource",
                 of("cub_relaunch/memory_nodes", "throughput_of_bare"))]),
    ],
    "capture": [
        ("claim and release in a capture, beyond the kernel: 256 claims",
         [figure(f"captured_claim_extra_us_{n}_branches", word, goal, "us", "capture", of(claims(n, 256), "extra_us"),
                 note="claim and release, beyond the kernel")
          for (n, word), goal in zip(BRANCHES.items(), ("<= 1.0", "<= 1.5"))]),
        ("the same of 16,384 claims, over that of 256",
         [figure(f"captured_claim_growth_{n}_branches", word, "<= 1.3", "ratio", "capture",
                 ratio(claims(n, 16_384), claims(n, 256), "extra_us")) for n, word in BRANCHES.items()]),
        ("claim in a capture, 64 claims without a release",
         [figure("captured_claim_us", "", "<= 2", "us", "claim", of("claim/captured"))]),
        ("retire in a capture, 8,192 owners: each",
         [figure("captured_retire_8192_us", "", "<= 0.4", "us", "capture",
                 of("capture/retire/owners:8192", "extra_us"))]),
        ("first instantiation, beyond plain CUDA",
         [figure(f"instantiate_{n}_owners_extra_us", f"{n:,} owners", goal, "us", "capture",
                 of(f"capture/instantiate/owners:{n}", "extra_us"), note="the first exec of a graph")
          for n, goal in ((64, "<= 3"), (8192, "<= 60"))]),
        ("64 owners add",
         [figure(f"{operation}_64_extra_us", operation, "<= 10", "us", "relaunch",
                 of(f"objects64/{operation}", "extra_us"), note=note)
          for operation, note in (
              ("instantiate", "the first exec of a graph, which is the dearest"),
              ("update", "to and fro between two graphs with 64 objects each"),
              ("destroy", "of an idle exec that is the last to hold the objects"))]),
        ("capture, instantiate, launch and destroy, over plain CUDA",
         [figure(f"graph_life_over_cuda_{n}t", word, goal, "ratio", "capture",
                 of(f"capture/whole/on_threads:{n}", "of_plain"))
          for (n, word), goal in zip(THREADS.items(), ("<= 1.25", "<= 1.15"))]),
        ("identifying a graph that is given as a plain handle",
         [figure(f"identity_{n}_nodes_us", f"{n:,} nodes", NO_GOAL, "us", "capture",
                 difference(f"capture/identity/plain_handle/nodes:{n}", f"capture/identity/own_graph/nodes:{n}",
                            "extra_us"),
                 note="instantiating a plain handle, beyond the same with a graph of Escrow's")
          for n in (10, 1000, 10000)]),
    ],
    "footprint": [
        ("device memory of 64 graphs with scratch of one size, over one graph's",
         [figure("shared_bytes_64_graphs", "shared", "<= 1.05", "ratio", "footprint", device_bytes("shared")),
          figure("memory_nodes_bytes_64_graphs", "memory nodes", NO_GOAL, "ratio", "footprint",
                 device_bytes("memory_nodes"))]),
        ("device memory of 65 graphs with several blocks each, over the best packing",
         [mixed("shared_bytes_mixed", "shared", "<= 1.25", "shared"),
          mixed("memory_nodes_bytes_mixed", "memory nodes", NO_GOAL, "memory_nodes"),
          mixed("private_bytes_mixed", "private", NO_GOAL, "private"),
          mixed("shared_bytes_smallest_first", "shared smallest first", NO_GOAL, "shared_smallest_first")]),
        ("launches/s of 64 graphs in turn, over plain launches over one arena",
         families("throughput", ">= 0.99", "throughput_of_bare")),
        ("host time of the same", families("host", "<= 1.25", "host_of_bare")),
        ("device memory of 64 graphs in an exec_set, over one exec",
         [figure("exec_set_bytes_64", "", "<= 1.2", "ratio", "footprint",
                 lambda m: (max(m("exec_set/memory", "set_kib"), 2048) /
                            max(m("exec_set/memory", "one_exec_kib"), 2048)),
                 note=lambda m: f"CUDA takes memory in steps of 2 MiB: {m('exec_set/memory', 'set_kib') / 1024:.3g} MiB; "
                                f"64 execs: {m('exec_set/memory', 'execs_kib') / 1024:.3g} MiB")]),
        ("host time of launching the same graph of an exec_set, over a plain launch",
         [exec_sets("exec_set_same_host", "same", "<= 1.25", n) for n in (8, 64, 512)]),
        ("host time of switching between two, over a plain update and launch",
         [exec_sets("exec_set_switch_over_update", "switch", "<= 1.1", n) for n in (8, 64, 512)]),
        ("values that another launch overwrote, in 100,000 launches",
         [races("two_stream_races", "2 streams", "= 0", "shared", 2),
          races("eight_stream_races", "8 streams", "= 0", "shared", 8),
          races("arena_races", "arena on 2 streams", "> 0", "arena", 2)]),
    ],
    "others": [
        ("retire over an event record",
         [figure("retire_over_record", "", "<= 2", "ratio", "retire",
                 ratio("retire/host/escrow", "retire/host/event_record"))]),
        ("`retire(stream, owner)`",
         [figure("retire_stream_us", "", "<= 0.5", "us", "retire",
                 difference("retire/stream/escrow", "retire/stream/nothing"))]),
        ("destroy callback, with the worker awake or asleep",
         [figure("destructor_p50_ns", "p50 awake", "<= 100", "ns", "destructor",
                 of("destructor/escrow_awake", "p50_ns")),
          figure("destructor_p999_ns", "p99.9 asleep", "<= 5000", "ns", "destructor",
                 of("destructor/escrow_asleep", "p999_ns"))]),
        ("allocations in steady state",
         [figure("steady_allocations", "", "= 0", "per million", "destructor",
                 lambda m: max(m.values("steady/allocations", "allocations_per_million")))]),
        ("adding a node with two owners, over plain CUDA without",
         [figure("build_node_over_cuda", "", "<= 1.5", "ratio", "build", of(f"build/escrow/{CHAIN}", "of_bare"),
                 of(f"build/bare_again/{CHAIN}", "of_bare"), build_note)]),
        ("the same with Python's `cuda.core`, over Escrow",
         [figure("build_cuda_core_over_escrow", "", ">= 3", "ratio", "cuda_core_build",
                 ratio(f"build/cuda_core/{CHAIN}", f"build/escrow/{CHAIN}"), note=cuda_core_note)]),
        ("host time per launch of 64 such nodes, over the bare graph's",
         [figure("retained_launch_host_k64", "", "<= 1.25", "ratio", "build",
                 of("retained/escrow/nodes:64", "host_of_bare"), of("retained/bare_again/nodes:64", "host_of_bare"),
                 lambda m: over_launches("retained/escrow/nodes:64", "in bursts of 16 it is ")(m)
                 + f"{m('retained/escrow/nodes:64', 'host_burst_of_bare'):.3f}")]),
        ("host memory per owner of a node",
         [figure("bytes_per_owner", "", NO_GOAL, "bytes", "build", of(f"memory/escrow/{CHAIN}", "bytes_per_owner"))]),
    ],
}
FIGURES = [each for rows in TABLES.values() for _, row in rows for each in row]

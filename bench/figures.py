# SPDX-License-Identifier: Apache-2.0
"""The figures: what each is computed from, its goal, and its place in the tables of docs/performance.md.

A value is "BENCHMARK FIELD", the median of a counter or of the time, or a function of measurements `m`, where
m(benchmark, field) is that median. A figure's noise is the same of two things that do not differ.
"""
from types import SimpleNamespace

NO_GOAL = "none"


class NotMeasured(Exception):
    """A benchmark or counter that there are no results of."""


def of(value):
    return (lambda m: m(*value.split())) if isinstance(value, str) else value


def ratio(value, other):
    return lambda m: of(value)(m) / of(other)(m)


def difference(value, other):
    return lambda m: of(value)(m) - of(other)(m)


def beyond_plain(name, other):
    """What one adds to plain calls over what another adds, each by its turns with them: a host changes its speed."""
    return lambda m: (m(name, "of_plain") - 1) / (m(other, "of_plain") - 1)


def either(value, other):
    """The second is of results that do not have the first."""
    def found(m):
        try:
            return of(value)(m)
        except NotMeasured:
            return of(other)(m)
    return found


def figure(name, goal, value, word="", unit="ratio", noise=None):
    """`word` sets the figure apart from the others in its row."""
    return SimpleNamespace(name=name, word=word, goal=goal, unit=unit, value=of(value), noise=of(noise))


KERNELS = {f"k{n}": f"kernels:{n}" for n in (1, 8, 64, 512)}
SIZES = {**KERNELS, "fork4": "fork4"}
MANY_THREADS = {1: "1 thread", 8: "8 threads", 16: "16 threads"}
THREADS, BRANCHES = {1: "1 thread", 8: "8 threads"}, {1: "1 branch", 16: "16 branches"}
USER, OURS = "relaunch/user_object/kernels:", "relaunch/escrow/kernels:"
CHAIN = "nodes:10000"


def in_turns(name, goal, field, word, form="escrow"):
    """A form's share of the bare graph's figure, which it took turns with."""
    size = SIZES[word]
    return figure(name, goal, f"relaunch/{form}/{size} {field}", word, noise=f"relaunch/bare_again/{size} {field}")


def host(name, word, form="escrow", goal="<= 1.25"):
    return in_turns(f"relaunch_host_{name}", goal, "host_of_bare", word, form)


def captured_claims(branches, count):
    return f"capture/claim/branches:{branches}/claims:{count} extra_us"


def identity(kind, nodes):
    return f"capture/identity/{kind}/nodes:{nodes} extra_us"


def families(word, goal, field):
    """Shares of plain launches of 64 graphs over one arena, which the ways took turns with."""
    return [figure(f"{name}_{word}", its, f"{pattern}/{way}/graphs:64 {field}", column,
                   noise=f"{pattern}/arena_again/graphs:64 {field}")
            for name, column, its, pattern, way in (
                ("alternating", "any order", goal, "footprint", "shared"),
                ("repeating", "each for long", goal, "footprint_long", "shared"),
                ("alternating_lasting", "any order, lasting streams", goal, "footprint", "lasting"),
                ("repeating_lasting", "each for long, lasting streams", goal, "footprint_long", "lasting"),
                ("memory_nodes", "memory nodes", NO_GOAL, "footprint", "memory_nodes"))]


def exec_sets(name, form, goal):
    return [figure(f"{name}_k{n}", goal, f"exec_set/{form}/kernels:{n} host_of_bare", f"{n} kernels") for n in (8, 64, 512)]


def races(name, goal, way, streams, word):
    return figure(name, goal, f"footprint_races/{way}/streams:{streams} wrong_values", word, "values")


def load(threads, streams=1, migrating=0):
    """The benchmark of all arms of claims in turns: streams are of each thread, migrating is percent."""
    return f"claim/threads:{threads}/streams:{streams}/migrating:{migrating}"


def over_escrow(pattern, threads, suffix, goals):
    """RMM's memory resources' time over that of Escrow's, in the same rounds."""
    return [figure(f"rmm_{arm}_over_mr_{suffix}", goal,
                   f"resource/{pattern}/threads:{threads}/streams:1 rmm_{arm}_of_escrow",
                   arm.replace("_", " ")) for arm, goal in zip(("pool", "pool_on_escrow", "arena", "cuda_async"), goals)]


def exec_set_bytes(m):
    """CUDA takes memory in steps of 2 MiB."""
    set_kib, one_exec_kib = (max(m("exec_set/memory", field), 2048) for field in ("set_kib", "one_exec_kib"))
    return set_kib / one_exec_kib


# The tables: what a row says, and the figures in it.
TABLES = {
    "gpu": [
        ("launches/s in a long row, over the bare graph's",
         [in_turns(f"relaunch_throughput_{word}", ">= 0.97" if word == "k1" else ">= 0.99", "throughput_of_bare", word)
          for word in SIZES]),
        ("the same by a stream_launcher",
         [in_turns("relaunch_throughput_lazy_k1", ">= 0.99", "throughput_of_bare", "k1", "lazy")]),
        ("the same by `launch_many`, with 64 copies",
         [in_turns(f"launch_many_throughput_{word}", goal, "throughput_of_bare", word, "many")
          for word, goal in (("k1", ">= 2"), ("k8", ">= 1.15"), ("k64", NO_GOAL))]),
        ("plain CUDA: launches while another exec is uploaded and not launched, over those before",
         [figure("beside_uploaded_k64", NO_GOAL, "beside_uploaded/kernels:64 of_plain", "k64")]),
        ("CUDA's user object adds to each launch in a long row",
         [figure(f"user_object_row_extra_us_k{n}", NO_GOAL, difference(f"{USER}{n} time", f"{USER}{n} bare_us"), f"k{n}", "us")
          for n in (8, 64, 512)]),
    ],
    "host": [
        ("in bursts of 16 launches, over the bare graph's",
         [in_turns(f"relaunch_burst_{word}", NO_GOAL, "host_burst_of_bare", word) for word in KERNELS]),
        ("over 200 launches (k512: 32), over the bare graph's; neither blocks",
         [host(word, word, goal="<= 1.15" if word == "k8" else "<= 1.25") for word in KERNELS]),
        ("the same by a stream_launcher", [host(f"lazy_{word}", word, "lazy", "<= 1.04") for word in ("k1", "k8", "k64")]),
        ("the same by `launch_many`, with 64 copies",
         [host(f"many_{word}", word, "many", NO_GOAL) for word in ("k1", "k8", "k64")]),
        ("the same with 4,096 owners in the graph", [host("4096_objects", "k8", "escrow_4096_objects")]),
        ("time to instantiate one of `launch_many`'s copies, of a graph of 8 kernels",
         [figure("copy_us", NO_GOAL, "copies/kernels:8 us_of_copy", unit="us")]),
        ("in bursts of 16, CUDA's user object over Escrow",
         [figure(f"user_object_over_escrow_burst_k{n}", NO_GOAL,
                 ratio(f"{USER}{n} host_burst_us", f"{OURS}{n} host_burst_us"), f"k{n}") for n in (8, 64)]),
    ],
    "limit": [
        ("launches in flight before the host blocks, Escrow",
         [figure("run_ahead", "> 1000", "run_ahead/escrow launches", unit="launches", noise="run_ahead/bare launches")]),
        ("the same with CUDA's user object",
         [figure("user_object_run_ahead", NO_GOAL, "run_ahead/user_object launches", unit="launches")]),
        ("host time over 200 launches, mostly blocking: CUDA's user object over Escrow",
         [figure(f"user_object_over_escrow_host_k{n}", goal, ratio(f"{USER}{n} host_us", f"{OURS}{n} host_us"), f"k{n}")
          for n, goal in ((8, ">= 5"), (64, ">= 25"))]),
    ],
    "threads": [
        ("launches/s of 12 threads, each with its own exec of 8 kernels, over the bare graph's",
         [figure("relaunch_threads12", ">= 0.97", "threads12/escrow throughput_of_bare",
                 noise="threads12/bare_again throughput_of_bare")]),
        ("the same with CUDA's user object",
         [figure("user_object_threads12", NO_GOAL, "threads12/user_object throughput_of_bare")]),
        ("p99.9 of a launch while other threads create and destroy graphs, over the bare graph's",
         [figure("interference_p999", "<= 1.5", "interference/escrow p999_of_bare",
                 noise="interference/bare_again p999_of_bare")]),
    ],
    "claim": [
        ("claim and release over the floor",
         [figure(f"claim_over_floor_{n}t", "<= 1.3", f"claim_turns/escrow_over_floor/on_threads:{n} of_base", word)
          for n, word in THREADS.items()]),
        ("claim and release over an event record",
         [figure(f"claim_over_record_{n}t", goal, f"{load(n)} escrow_of_event_record", word)
          for (n, word), goal in zip(MANY_THREADS.items(), ("<= 1.6", "<= 1.1", "<= 1.1"))]),
        ("claim and release by a claimer, over the driver's capture query and stream id",
         [figure(f"local_pair_over_driver_queries_{n}t", goal, f"{load(n)} local_of_driver_queries", word)
          for (n, word), goal in zip(MANY_THREADS.items(), ("<= 2", "<= 2.5", "<= 2.5"))]),
        ("the same on 16 threads, over 1 thread",
         [figure(f"{name}_growth_16t", "<= 1.4", ratio(f"{load(16)} {arm}_us", f"{load(1)} {arm}_us"), word)
          for name, arm, word in (("local_pair", "local", "claimer"), ("allocator_lasting", "allocator_lasting", "stream_allocator"))]),
        ("`stream_allocator` with lasting streams, over the driver's capture query and stream id",
         [figure("allocator_lasting_over_driver_queries_8t", "<= 3.5", f"{load(8)} allocator_lasting_of_driver_queries",
                 "8 threads")]),
        ("a mutex and a vector over claim and release",
         [figure("mutex_vector_over_claim_1t", ">= 1.1", f"{load(1)} mutex_vector_of_escrow", "1 thread")]),
        ("PyTorch's caching allocator over claim and release",
         [figure("pytorch_over_claim_1t", ">= 1.3", f"{load(1)} pytorch_of_escrow", "1 thread")]),
        ("RMM's pool over claim and release",
         [figure("rmm_pool_over_claim_1t", ">= 1.2", f"{load(1)} rmm_pool_of_escrow", "1 thread")]),
        ("PyTorch's caching allocator over a claimer",
         [figure(f"pytorch_over_local_{n}t", goal, f"{load(n)} pytorch_of_local", word)
          for (n, word), goal in zip(THREADS.items(), (">= 2", ">= 50"))]),
        ("RMM, the faster of its pool and fixed-size resources, over a claimer",
         [figure("rmm_over_local_8t", ">= 50",
                 lambda m: min(m(load(8), f"rmm_{which}_of_local") for which in ("pool", "fixed_size")), "8 threads")]),
        ("`cub::CachingDeviceAllocator` over claim and release",
         [figure(f"cub_over_claim_{n}t", goal, f"{load(n)} cub_of_escrow", word)
          for (n, word), goal in zip(THREADS.items(), (">= 1.0", ">= 2.0"))]),
        ("claim by a claimer that takes what another one released, over claim and release",
         [figure("steal_over_eager", "<= 2.0", "claim_turns/steal_over_escrow_on_first_stream/on_threads:1 of_base")]),
        ("claim by a claimer and release on another stream, over the same without a claimer, 8 threads",
         [figure("migrate100_over_eager", "<= 1.1", f"{load(8, 4, 100)} local_of_escrow")]),
        ("claim and release by size, over claim and release",
         [figure(f"scratch_claim_over_pool_{n}t", "<= 1.15", f"claim_turns/scratch_over_escrow/on_threads:{n} of_base", word)
          for n, word in THREADS.items()]),
        ("memory that claims by size get, over what they ask for, in an inference trace",
         [figure("scratch_overhead_bytes", "<= 1.25", "claim/scratch_memory over_asked")]),
        ("memory that the pool takes for that trace, at most, over the largest claim",
         [figure("scratch_over_largest", NO_GOAL, "claim/scratch_memory over_largest")]),
        ("idle memory that `trim()` gives back to the device",
         [figure("trim_returns", "= 1", "claim/scratch_memory device_of_idle")]),
        ("claim and release with 16,384 idle free slots, over the floor on the same streams",
         [figure("claim_16384_idle_over_floor", "<= 1.6", "capture/eager/free_idle:16384 of_plain")]),
        ("claim for the host and release, of blocks that no work uses",
         [figure("claim_for_host_us", "<= 1", "claim/for_host time", unit="us")]),
        ("`record_stream` of another stream: its wait for the earlier users, and its record at the release",
         [figure("record_stream_us", "<= 2", "claim/record_stream time", unit="us")]),
        ("the end of a lease of a capture while its stream captures another graph",
         [figure("end_in_another_capture_us", "<= 0.5", "claim/end_in_another_capture time", unit="us")]),
        ("claim and release beside 10,000 slots that wait for a record on another stream, over none",
         [figure("claim_beside_10000_waiting", "<= 1.1", "claim/beside_waiting of_plain")]),
        ("claim and release, 1,024 streams in turn, over the floor on the same streams",
         [figure("claim_1024_streams_over_floor", "<= 1.6", "capture/eager/streams:1024 of_plain")]),
    ],
    "resource": [
        ("allocation and deallocation through `memory_resource`, over claim and release of its pool",
         [figure("mr_claim_over_pool_1t", "<= 1.2", "resource_turns/escrow_over_scratch/on_threads:1 of_base", "1 thread")]),
        ("RMM's resources over Escrow's, memory of one size, 1 thread",
         over_escrow("pairs", 1, "1t", (">= 1.1", NO_GOAL, NO_GOAL, NO_GOAL))),
        ("the same, 8 threads", over_escrow("pairs", 8, "8t", (">= 2", NO_GOAL, ">= 1.5", NO_GOAL))),
        ("the same, memory of random sizes", over_escrow("random", 8, "random_8t", (NO_GOAL, NO_GOAL, NO_GOAL, ">= 12"))),
        ("nodes that allocate or free, in a graph with a reduction of CUB",
         [figure("cub_memory_nodes", "= 0", "cub_relaunch/escrow memory_nodes", "Escrow's resource", "nodes"),
          figure("cub_default_memory_nodes", NO_GOAL, "cub_relaunch/memory_nodes memory_nodes", "CUB's default", "nodes")]),
        ("launches/s of that graph, over the same with scratch allocated beforehand",
         [figure("cub_relaunch_throughput", ">= 0.99", "cub_relaunch/escrow throughput_of_bare", "Escrow's resource",
                 noise="cub_relaunch/bare_again throughput_of_bare"),
          figure("cub_default_relaunch_throughput", NO_GOAL, "cub_relaunch/memory_nodes throughput_of_bare",
                 "CUB's default")]),
    ],
    "capture": [
        ("claim and release in a capture, beyond the kernel: 256 claims",
         [figure(f"captured_claim_extra_us_{n}_branches", goal, captured_claims(n, 256), word, "us")
          for (n, word), goal in zip(BRANCHES.items(), ("<= 0.6", "<= 0.8"))]),
        ("the same of 16,384 claims, over that of 256",
         [figure(f"captured_claim_growth_{n}_branches", "<= 1.3",
                 ratio(captured_claims(n, 16_384), captured_claims(n, 256)), word) for n, word in BRANCHES.items()]),
        ("claim and release of scratch in a capture, 256 claims, in a sharing group over in none",
         [figure(f"captured_claim_in_group_{n}_branches", "<= 1.3",
                 beyond_plain(f"capture/grouped/branches:{n}/claims:256", f"capture/scratch/branches:{n}/claims:256"), word)
          for n, word in BRANCHES.items()]),
        ("claim and release in a group's capture with four kernels between two claims, 1,024 claims",
         [figure("captured_claim_spaced_us", "<= 4", "capture/spaced/claims:1024 extra_us", unit="us")]),
        ("the same, over that of 32 claims",
         [figure("captured_claim_spaced_growth", "<= 1.3",
                 ratio("capture/spaced/claims:1024 extra_us", "capture/spaced/claims:32 extra_us"))]),
        ("claim in a capture, 64 claims without a release",
         [figure("captured_claim_us", "<= 2", "claim/captured time", unit="us")]),
        ("retire in a capture, 8,192 owners: each",
         [figure("captured_retire_8192_us", "<= 0.4", "capture/retire/owners:8192 extra_us", unit="us")]),
        ("first instantiation, beyond plain CUDA",
         [figure(f"instantiate_{n}_owners_extra_us", goal, f"capture/instantiate/owners:{n} extra_us", f"{n:,} owners", "us")
          for n, goal in ((64, "<= 3"), (8192, "<= 60"))]),
        ("64 owners add",
         [figure(f"{operation}_64_extra_us", "<= 10", f"objects64/{operation} extra_us", operation, "us")
          for operation in ("instantiate", "update", "destroy")]),
        ("capture, instantiate, launch and destroy, over plain CUDA",
         [figure(f"life_over_plain_{n}t", goal, f"capture/whole/on_threads:{n} of_plain", word)
          for (n, word), goal in zip(THREADS.items(), ("<= 1.25", "<= 1.1"))]),
        ("identifying a graph that is given as a plain handle",
         [figure(f"identity_{n}_nodes_us", NO_GOAL, difference(identity("plain_handle", n), identity("own_graph", n)),
                 f"{n:,} nodes", "us") for n in (10, 1000, 10000)]),
    ],
    "footprint": [
        ("device memory of 64 graphs with scratch of one size, over one graph's",
         [figure(f"{way}_bytes_64_graphs", goal, ratio(f"footprint/{way}/graphs:64 device_kib",
                                                       f"footprint/{way}/graphs:64 scratch_kib"), way.replace("_", " "))
          for way, goal in (("shared", "<= 1.02"), ("memory_nodes", NO_GOAL))]),
        ("device memory of 65 graphs with several blocks each, over the best packing",
         [figure(name, goal, f"footprint_mixed/{way} over_best", way.replace("_", " ")) for name, goal, way in (
             ("shared_bytes_mixed", "<= 1.05", "shared"), ("memory_nodes_bytes_mixed", NO_GOAL, "memory_nodes"),
             ("private_bytes_mixed", NO_GOAL, "private"), ("shared_bytes_smallest_first", "<= 1.05", "shared_smallest_first"))]),
        ("the same of one graph: 8 layers of 500 MiB, and scalars",
         [figure(f"{way}_bytes_scalars", goal, f"footprint_scalars/{way} over_best", way.replace("_", " "))
          for way, goal in (("shared", "<= 1.05"), ("memory_nodes", NO_GOAL), ("private", NO_GOAL))]),
        ("slowest launch while 16 GiB are trimmed and 1,000 owners destroyed, beside a kernel",
         [figure("launch_max_us_while_freeing", "<= 300", "freeing/all time", unit="us", noise="freeing/none time")]),
        ("device memory that a pool keeps, over the most in use",
         [figure(f"kept_over_peak_{word}", "<= 1.6", f"kept/{word}/bounded over_peak", word.replace("_", " "))
          for word in ("one_at_a_time", "growing")]),
        ("claim and release of random sizes, 64 blocks out, over a pool that keeps all",
         [figure("kept_random_over_all", "<= 1.25", either("kept_random of_plain",
                                                          ratio("kept_random/bounded time", "kept_random/all time")))]),
        ("time to give 16 GiB of a sharing group back and to map them again, contents discarded",
         [figure("park_16gib_ms", "<= 25", "park/gib:16/discarded park_ms", "park", "ms"),
          figure("unpark_16gib_ms", "<= 10", "park/gib:16/discarded unpark_ms", "unpark", "ms"),
          figure("first_park_16gib_ms", NO_GOAL, "park/gib:16/discarded first_park_ms", "first park", "ms")]),
        ("slowest launch of another group meanwhile",
         [figure("launch_max_us_while_parking", "<= 300", "park/gib:16/discarded launch_max_us", unit="us",
                 noise="park/gib:16/discarded launch_max_alone_us")]),
        ("a launch after that, over one before",
         [figure("relaunch_after_park", "<= 1.05", "park/gib:16/discarded relaunch_of_before")]),
        ("wrong values after it", [figure("park_wrong_values", "= 0", "park/gib:16/discarded wrong_values", unit="values")]),
        ("launches/s of 64 graphs in turn, over plain launches over one arena",
         families("throughput", ">= 0.99", "throughput_of_bare")),
        ("host time of the same", families("host", "<= 1.2", "host_of_bare")),
        ("device memory of 64 graphs in an exec_set, over one exec", [figure("exec_set_bytes_64", "<= 1.2", exec_set_bytes)]),
        ("host time of launching the same graph of an exec_set, over a plain launch",
         exec_sets("exec_set_same_host", "same", "<= 1.25")),
        ("host time of switching between two, over a plain update and launch",
         exec_sets("exec_set_switch_over_update", "switch", "<= 1.1")),
        ("values that another launch overwrote, in 100,000 launches",
         [races("two_stream_races", "= 0", "shared", 2, "2 streams"), races("eight_stream_races", "= 0", "shared", 8, "8 streams"),
          races("arena_races", "> 0", "arena", 2, "arena on 2 streams")]),
    ],
    "others": [
        ("retire over an event record",
         [figure("retire_over_record", "<= 2", ratio("retire/host/escrow time", "retire/host/event_record time"))]),
        ("`retire(stream, owner)`",
         [figure("retire_stream_us", "<= 0.5", difference("retire/stream/escrow time", "retire/stream/nothing time"), unit="us")]),
        ("destroy callback, with the worker awake or asleep",
         [figure("destructor_p50_ns", "<= 100", "destructor/escrow_awake p50_ns", "p50 awake", "ns"),
          figure("destructor_p999_ns", "<= 5000", "destructor/escrow_asleep p999_ns", "p99.9 asleep", "ns")]),
        ("allocations in steady state",
         [figure("steady_allocations", "= 0", lambda m: max(m.values("steady/allocations", "allocations_per_million")),
                 unit="per million")]),
        ("adding a node with two owners, over plain CUDA without",
         [figure("build_node_over_cuda", "<= 1.5", f"build/escrow/{CHAIN} of_bare", noise=f"build/bare_again/{CHAIN} of_bare")]),
        ("the same with Python's `cuda.core`, over Escrow",
         [figure("build_cuda_core_over_escrow", ">= 3", ratio(f"build/cuda_core/{CHAIN} time", f"build/escrow/{CHAIN} time"))]),
        ("host time per launch of 64 such nodes, over the bare graph's",
         [figure("retained_launch_host_k64", "<= 1.25", "retained/escrow/nodes:64 host_of_bare",
                 noise="retained/bare_again/nodes:64 host_of_bare")]),
        ("an audit of a graph of 1,000 nodes with two pointers each",
         [figure("audit_1000_nodes_ms", "<= 2", lambda m: m("audit/nodes:1000") / 1e3, unit="ms")]),
    ],
}
# What a printed table is called; on the page it has a heading.
TITLES = {
    "gpu": "Relaunches: time on the GPU", "host": "Relaunches: time of the host", "limit": "How far the host can be ahead",
    "threads": "Relaunches by several threads", "claim": "Claims and releases", "resource": "Memory resources",
    "capture": "Captures", "footprint": "Graphs that share scratch", "others": "Others",
}
FIGURES = [each for rows in TABLES.values() for _, row in rows for each in row]

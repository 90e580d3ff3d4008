"""The figures, most of which have a goal, and how each is computed from what was measured."""

from dataclasses import dataclass
from typing import Callable, Optional, Union

from alike import likeness
from measured import Measured


NO_GOAL = "none"


@dataclass(frozen=True)
class Figure:
    name: str
    goal: str
    unit: str
    program: str
    compute: Callable[[Measured], float]
    # The same of two things that do not differ.
    noise: Optional[Callable[[Measured], float]] = None
    note: Union[str, Callable[[Measured], str], None] = None


def median(name, field="time"):
    return lambda m: m.median(name, field)


def ratio(name, other, field="time"):
    return lambda m: m.median(name, field) / m.median(other, field)


def difference(name, other, field="time"):
    return lambda m: m.median(name, field) - m.median(other, field)


def largest(name, field):
    return lambda m: max(m.values(name, field))


def claim(form, threads):
    return f"claim/{form}/on_threads:{threads}"


POOL_AND_DELETER = [
    *(
        Figure(f"claim_over_floor_{n}t", "<= 1.3", "ratio", "claim_bench",
               ratio(claim("escrow", n), claim("floor", n)))
        for n in (1, 8)
    ),
    Figure("cub_over_claim_1t", ">= 1.0", "ratio", "claim_bench",
           ratio(claim("cub", 1), claim("escrow", 1))),
    Figure("cub_over_claim_8t", ">= 2.0", "ratio", "claim_bench",
           ratio(claim("cub", 8), claim("escrow", 8))),
    Figure("captured_claim_us", "<= 2", "us", "claim_bench", median("claim/captured")),
    Figure("retire_over_record", "<= 2", "ratio", "retire_bench",
           ratio("retire/host/escrow", "retire/host/event_record")),
    Figure("retire_stream_us", "<= 0.5", "us", "retire_bench",
           difference("retire/stream/escrow", "retire/stream/nothing")),
    Figure("destructor_p50_ns", "<= 100", "ns", "destructor_bench",
           median("destructor/escrow_awake", "p50_ns")),
    Figure("destructor_p999_ns", "<= 5000", "ns", "destructor_bench",
           median("destructor/escrow_asleep", "p999_ns")),
    Figure("steady_allocations", "= 0", "per million", "destructor_bench",
           largest("steady/allocations", "allocations_per_million")),
]


def in_turns(name, goal, form, field, size, note=None):
    """A form's share of the bare graph's figure, which it took turns with."""
    return Figure(name, goal, "ratio", "relaunch_bench", median(f"relaunch/{form}/{size}", field),
                  median(f"relaunch/bare_again/{size}", field), note)


def throughput(label, size):
    return in_turns(f"relaunch_throughput_{label}", ">= 0.99", "escrow", "throughput_of_bare", size,
                    lambda m: likeness(m, size))


def host_note(form, size):
    def note(m):
        fields = m.fields(f"relaunch/{form}/{size}")
        if "host_launches" not in fields:
            return ""
        return (f"host time per launch over {fields['host_launches']:.0f} launches from an idle "
                f"stream; neither graph blocks the host")

    return note


def host(label, size, form="escrow"):
    return in_turns(f"relaunch_host_{label}", "<= 1.25", form, "host_of_bare", size,
                    host_note(form, size))


BURST_NOTE = "host time per launch in bursts of 16, which do not block the host"


def burst(label, size):
    return in_turns(f"relaunch_burst_{label}", NO_GOAL, "escrow", "host_burst_of_bare", size,
                    BURST_NOTE)


def user_object_over_escrow(kernels, goal):
    """Over many launches, most of which block, and in bursts, which do not block."""
    names = [f"relaunch/{form}/kernels:{kernels}" for form in ("user_object", "escrow")]

    def note(m):
        launches = m.fields(names[0]).get("host_launches")
        if launches is None:
            return ""
        return (f"host time per launch over {launches:.0f} launches from an idle stream; with a "
                "user object it is mostly blocking")

    return [
        Figure(f"user_object_over_escrow_host_k{kernels}", goal, "ratio", "relaunch_bench",
               ratio(*names, "host_us"), note=note),
        Figure(f"user_object_over_escrow_burst_k{kernels}", NO_GOAL, "ratio", "relaunch_bench",
               ratio(*names, "host_burst_us"), note=BURST_NOTE),
    ]


def user_object_row_extra(kernels):
    name = f"relaunch/user_object/kernels:{kernels}"
    return Figure(f"user_object_row_extra_us_k{kernels}", NO_GOAL, "us", "relaunch_bench",
                  lambda m: m.median(name) - m.median(name, "bare_us"),
                  note="time per launch in a long row, beyond the bare graph's")


def objects64(operation, note):
    return Figure(f"{operation}_64_extra_us", "<= 10", "us", "relaunch_bench",
                  median(f"objects64/{operation}", "extra_us"), note=note)


RELAUNCH = [
    *(throughput(f"k{k}", f"kernels:{k}") for k in (1, 8, 64, 512)),
    throughput("fork4", "fork4"),
    *(host(f"k{k}", f"kernels:{k}") for k in (1, 8, 64, 512)),
    host("4096_objects", "kernels:8", "escrow_4096_objects"),
    *(burst(f"k{k}", f"kernels:{k}") for k in (1, 8, 64, 512)),
    Figure("run_ahead", "> 1000", "launches", "relaunch_bench",
           median("run_ahead/escrow", "launches"), median("run_ahead/bare", "launches"),
           "A/A is the bare graph's"),
    Figure("user_object_run_ahead", NO_GOAL, "launches", "relaunch_bench",
           median("run_ahead/user_object", "launches")),
    Figure("relaunch_threads12", ">= 0.97", "ratio", "relaunch_bench",
           median("threads12/escrow", "throughput_of_bare"),
           median("threads12/bare_again", "throughput_of_bare")),
    Figure("user_object_threads12", NO_GOAL, "ratio", "relaunch_bench",
           median("threads12/user_object", "throughput_of_bare")),
    *user_object_over_escrow(8, ">= 5"),
    *user_object_over_escrow(64, ">= 25"),
    *(user_object_row_extra(k) for k in (8, 64, 512)),
    objects64("instantiate", "the first exec of a graph, which is the dearest"),
    objects64("update", "to and fro between two graphs with 64 objects each"),
    objects64("destroy", "of an idle exec that is the last to hold the objects"),
    Figure("interference_p999", "<= 1.5", "ratio", "relaunch_bench",
           median("interference/escrow", "p999_of_bare"),
           median("interference/bare_again", "p999_of_bare")),
]

CHAIN = "nodes:10000"


def a_node(*fields, form="escrow"):
    """A note of counters that have no goal, in nanoseconds a node."""
    name = f"build/{form}/{CHAIN}"

    def note(m):
        there = [each for each in fields if each in m.fields(name)]
        return ", ".join(f"{each} {m.median(name, each):.0f}" for each in there)

    return note


def build_note(m):
    shares = []
    for form in ("escrow_warm", "escrow_no_owners", "user_objects"):
        if "of_bare" in m.fields(f"build/{form}/{CHAIN}"):
            shares.append(f"{form} {m.median(f'build/{form}/{CHAIN}', 'of_bare'):.3g}")
    parts = a_node("build_ns", "bare_build_ns", "seal_ns", "destroy_ns", "bare_destroy_ns")(m)
    return "; ".join(filter(None, [
        f"per node: {parts}" if parts else "",
        f"others over bare: {', '.join(shares)}" if shares else ""]))


def cuda_core_note(m):
    """Why there is nothing, if there is nothing."""
    if m.fields(f"build/cuda_core/{CHAIN}"):
        return "from Python, whose own time is in it"
    return next((problem for problem in m.problems if problem.startswith("cuda_core_build")),
                "Python's cuda.core was not run")


def retained_note(m):
    name = "retained/escrow/nodes:64"
    if "host_burst_of_bare" not in m.fields(name):
        return ""
    return (f"host time per launch over {m.fields(name)['host_launches']:.0f} launches from an idle "
            f"stream; in bursts of 16 it is {m.median(name, 'host_burst_of_bare'):.3f}")


BUILD = [
    Figure("build_node_over_cuda", "<= 1.5", "ratio", "build_bench",
           median(f"build/escrow/{CHAIN}", "of_bare"),
           median(f"build/bare_again/{CHAIN}", "of_bare"), build_note),
    Figure("build_cuda_core_over_escrow", ">= 3", "ratio", "cuda_core_build_bench",
           ratio(f"build/cuda_core/{CHAIN}", f"build/escrow/{CHAIN}"), note=cuda_core_note),
    Figure("retained_launch_host_k64", "<= 1.25", "ratio", "build_bench",
           median("retained/escrow/nodes:64", "host_of_bare"),
           median("retained/bare_again/nodes:64", "host_of_bare"), retained_note),
    Figure("bytes_per_owner", NO_GOAL, "bytes", "build_bench",
           median(f"memory/escrow/{CHAIN}", "bytes_per_owner")),
]

FEW, MANY = 256, 16_384  # claims in one capture


def captured(name, goal, unit, compute, note=None):
    return Figure(name, goal, unit, "capture_bench", compute, note=note)


def captured_claims(branches, claims):
    return f"capture/claim/branches:{branches}/claims:{claims}"


def eager_claim(name, benchmark):
    def note(m):
        if "extra_us" not in m.fields(benchmark):
            return ""
        return f"{m.median(benchmark, 'extra_us'):.3g} us of it beyond the floor"

    return captured(name, "<= 1", "us", median(benchmark, "escrow_us"), note)


def identity(nodes):
    names = [f"capture/identity/{form}/nodes:{nodes}" for form in ("plain_handle", "own_graph")]
    return captured(f"identity_{nodes}_nodes_us", NO_GOAL, "us", difference(*names, "extra_us"),
                    "instantiating a plain handle, beyond the same with a graph of Escrow's")


CAPTURE = [
    *(
        captured(f"captured_claim_extra_us_{n}_branches", goal, "us",
                 median(captured_claims(n, FEW), "extra_us"),
                 "claim and release, beyond the kernel")
        for n, goal in ((1, "<= 1.0"), (16, "<= 1.5"))
    ),
    *(
        captured(f"captured_claim_growth_{n}_branches", "<= 1.3", "ratio",
                 ratio(captured_claims(n, MANY), captured_claims(n, FEW), "extra_us"))
        for n in (1, 16)
    ),
    captured("captured_retire_8192_us", "<= 0.4", "us",
             median("capture/retire/owners:8192", "extra_us")),
    *(
        captured(f"instantiate_{n}_owners_extra_us", goal, "us",
                 median(f"capture/instantiate/owners:{n}", "extra_us"),
                 "the first exec of a graph")
        for n, goal in ((64, "<= 3"), (8192, "<= 60"))
    ),
    *(
        captured(f"graph_life_over_cuda_{n}t", goal, "ratio",
                 median(f"capture/whole/on_threads:{n}", "of_plain"))
        for n, goal in ((1, "<= 1.25"), (8, "<= 1.15"))
    ),
    eager_claim("claim_16384_idle_us", "capture/eager/free_idle:16384"),
    eager_claim("claim_1024_streams_us", "capture/eager/streams:1024"),
    *(identity(n) for n in (10, 1_000, 10_000)),
]

FIGURES = [*POOL_AND_DELETER, *RELAUNCH, *CAPTURE, *BUILD]

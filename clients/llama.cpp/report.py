# SPDX-License-Identifier: Apache-2.0
"""The goals and the Markdown tables of a result: report.py RESULT.json"""
import json
import statistics
import sys
from pathlib import Path

RATES = ("prefill", "decode", "mixed")
LOGITS = tuple(f"{rate}_logits" for rate in RATES)
NOT_MEASURED = "not measured yet"


def of_rounds(rounds, rate):
    """The median of each round's repetitions."""
    return [statistics.median(each[rate]) for each in rounds]


def median(values):
    return statistics.median(values) if values else None


def spread(values):
    """Half of the distance between the quartiles, over the median."""
    if len(values) < 4:
        return None
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / middle


def ratio(above, below):
    return above / below if above is not None and below else None


def number(value, form=".2f"):
    return NOT_MEASURED if value is None else format(value, form)


def speeds(result):
    """Per configuration and variant: the ratios to its own pool, and whether the logits are the same."""
    for name, found in result.items():
        if not name.startswith("speed, "):
            continue
        own = found.get("own", [])
        for variant, rounds in found.items():
            if variant == "failed":
                continue
            its = {rate: of_rounds(rounds, rate) for rate in RATES}
            base = {rate: median(of_rounds(own, rate)) for rate in RATES}
            seen = {tuple(each[key] for key in LOGITS) for each in rounds + own}
            yield {"configuration": name.removeprefix("speed, "), "variant": variant, "rounds": len(rounds),
                   "rates": {rate: median(its[rate]) for rate in RATES},
                   "ratios": {rate: ratio(median(its[rate]), base[rate]) for rate in RATES},
                   "spreads": {rate: spread(its[rate]) for rate in RATES},
                   "is_same": len(seen) == 1 if rounds and own else None}


def one(rows, key, **wanted):
    """A value of the only row that is so; None if there is none."""
    found = [row.get(key) for row in rows if all(row.get(name) == value for name, value in wanted.items())]
    return found[0] if len(found) == 1 else None


def contexts_of(result):
    return result.get("contexts", []) + result.get("contexts, no flash attention", [])


def pool_of(result, variant, contexts, attention=1):
    return one(contexts_of(result), "pool_mib", variant=variant, contexts=contexts, flash_attention=attention)


def faults(result, variant):
    """Faults, wrong results and captures made again with 256 MiB left; None if it was not measured."""
    row = next((row for row in result.get("growth", []) if (row["limit_mib"], row["variant"]) == (256, variant)), None)
    if row is None:
        return None
    return 1 if "failed" in row else row["wrong"] + row["recaptures"]


def audits(result, is_stale):
    """How many audited runs were refused for an address, of those with a planted one or of the others."""
    rows = [row for row in result.get("audits", []) if row["stale"] == is_stale]
    return sum("is of the pool" in row.get("refused", "") for row in rows) if rows else None


def goals(result):
    """What, the limit in words, the value, and whether it is met: None if it was not measured."""
    def row(what, value, limit, is_met, form=".2f"):
        return what, limit, number(value, form), None if value is None else bool(is_met(value))

    found = list(speeds(result))
    same = [each["is_same"] for each in found if each["variant"] != "own" and each["is_same"] is not None]
    lines = sum(result["changed_lines"]) if "changed_lines" in result else None
    yield row("lines changed in ggml-cuda", lines, "<= 25", lambda value: value <= 25, "d")
    ratios = one(found, "ratios", configuration="graphs", variant="Escrow") or {}
    for rate in RATES:
        yield row(f"tokens/s with graphs, {rate}", ratios.get(rate), ">= 0.98", lambda value: value >= 0.98, ".3f")
    yield row("configurations with other logits", same.count(False) if same else None, "0", lambda value: value == 0, "d")
    operations = result.get("operations", {}).values()
    compared = sum(each["in_both"] for each in operations)
    different = sum(each["different"] for each in operations) if compared else None
    what, *others = row("operations with other results", different, "0", lambda value: value == 0, "d")
    yield (f"{what}, of {compared:,}" if compared else what, *others)
    own, escrow = pool_of(result, "own", 1), pool_of(result, "Escrow", 1)
    yield row("pool of one context, over its own", ratio(escrow, own), "<= 1.1", lambda value: value <= 1.1)
    shared = ratio(pool_of(result, "Escrow, one group", 8), pool_of(result, "Escrow, one group", 1))
    yield row("pool of 8 contexts in one group, over that of one", shared, "<= 1.1", lambda value: value <= 1.1)
    peak = {name: one(result.get("growth", []), "peak_mib", limit_mib=0, variant=name) for name in ("own", "Escrow")}
    yield row("peak of growing work, over its own", ratio(peak["Escrow"], peak["own"]), "<= 1.6", lambda value: value <= 1.6)
    what = "faults, wrong results, recaptures with 256 MiB left"
    yield row(what, faults(result, "Escrow"), "0", lambda value: value == 0, "g")
    yield row("audits: false alarms in two kinds of work", audits(result, False), "0", lambda value: value == 0, "d")
    yield row("audits: planted stale addresses found, of two", audits(result, True), "2", lambda value: value == 2, "d")


def goal_table(result):
    yield from ("| goal | limit | measured | |", "|---|---|---|---|")
    for what, limit, value, is_met in goals(result):
        yield f"| {what} | {limit} | {value} | {'' if is_met is None else 'met' if is_met else '**missed**'} |"


def speed_table(result):
    yield from ("| tokens/s over its own pool, medians of rounds in turns | prefill 512 | decode 128 | mixed | logits |",
                "|---|---|---|---|---|")
    for each in speeds(result):
        is_own = each["variant"] == "own"
        cells = [f"{number(each['rates'][rate], ',.0f')} a second" if is_own else number(each["ratios"][rate], ".3f")
                 for rate in RATES]
        spreads = [each["spreads"][rate] for rate in RATES]
        cells = [cell + (f" (± {100 * by:.1f} %)" if by is not None else "") for cell, by in zip(cells, spreads)]
        logits = "" if is_own else {True: "equal", False: "**other**", None: NOT_MEASURED}[each["is_same"]]
        yield f"| {each['configuration']}: {each['variant']} | {' | '.join(cells)} | {logits} |"


def memory_table(result):
    yield from ("| pool, MiB | own | Escrow | Escrow, one group |", "|---|---|---|---|")
    variants = ("own", "Escrow", "Escrow, one group")
    for attention in (1, 0):
        for contexts in (1, 8):
            cells = [number(pool_of(result, name, contexts, attention), ".1f") for name in variants]
            name = f"{contexts} context{'s' if contexts > 1 else ''}{'' if attention else ', no flash attention'}"
            yield f"| {name} | {' | '.join(cells)} |"
    for limit in (0, 256):
        rows = {row["variant"]: row for row in result.get("growth", []) if row["limit_mib"] == limit}
        cells = ["**fault**" if "failed" in row else number(row.get("peak_mib"), ".1f")
                 for row in (rows.get(name, {}) for name in variants)]
        yield f"| peak of growing work{f', {limit} MiB left' if limit else ''} | {' | '.join(cells)} |"


def details(result):
    """What else a reader of the log wants to know."""
    for row in result.get("growth", []):
        said = row.get("failed") or (
            f"wrong {row['wrong']}, recaptures {row['recaptures']:g}, peak {row['peak_mib']:.1f} MiB")
        yield f"growing work, limit {row['limit_mib']}, {row['variant']}: {said}"
    for row in result.get("audits", []):
        yield f"audits, {row['work']}{', stale' if row['stale'] else ''}: {row.get('refused', 'no finding')}"
    for row in contexts_of(result):
        said = row.get("failed") or (
            f"pool {row['pool_mib']:.1f} MiB, {row['in_graphs_mib']:.1f} in graphs, device {row['device_mib']:.0f}; in turn "
            f"{row['in_turn']:.0f}/s, at once {row['at_once']:.0f}/s; wrong {row['wrong']}, captures {row['captures']:g}")
        yield f"{row['contexts']} contexts, flash attention {row['flash_attention']}, {row['variant']}: {said}"
    for name, row in result.get("operations", {}).items():
        yield f"operations, {name}: {json.dumps(row)}"
    for name, found in result.items():
        if name.startswith("speed, ") and "failed" in found:
            yield f"{name}: {found['failed']}"


def tables(result):
    return "\n\n".join("\n".join(part(result)) for part in (goal_table, speed_table, memory_table))


def are_met(result):
    return all(is_met for _, _, _, is_met in goals(result))


if __name__ == "__main__":
    read = json.loads(Path(sys.argv[1]).read_text())
    print(tables(read), *details(read), sep="\n")

"""Whether a graph that Escrow captured has the same nodes and edges as the bare one."""


def facts_of(measured, form, size):
    """{"nodes_kernel": 8, "edges": 7}, as the bench counted them; nothing if it did not."""
    fields = measured.fields(f"relaunch/{form}/{size}")
    return {
        key: int(value)
        for key, value in sorted(fields.items())
        if key.startswith("nodes_") or key == "edges"
    }


def in_words(facts):
    nodes = [f"{count} {key[6:]} nodes" for key, count in facts.items() if key != "edges"]
    return ", ".join([*nodes, f"{facts.get('edges', 0)} edges"])


def likeness(measured, size, form="escrow"):
    """One sentence, without a full stop; empty if the graphs were not looked at."""
    bare, pooled = (facts_of(measured, each, size) for each in ("bare", form))
    if not bare or not pooled:
        return ""
    if bare == pooled:
        return f"both graphs have {in_words(bare)}: the timing is an A/A test of the same graph"
    return f"the graphs differ: bare has {in_words(bare)}, {form} has {in_words(pooled)}"

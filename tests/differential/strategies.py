"""Random small concurrent programs for Hypothesis, which shrinks them."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.differential.programs import BLOCK_OPS, LEAF_OPS, Node


def programs(max_leaves: int = 14) -> st.SearchStrategy[tuple[Node, ...]]:
    """Programs of some tens of nodes at most."""
    leaf = st.builds(Node, st.sampled_from(LEAF_OPS), st.integers(0, 11))

    def grow(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        block = st.lists(inner, min_size=1, max_size=4).map(tuple)
        return st.builds(
            Node, st.sampled_from(BLOCK_OPS), st.integers(0, 11), st.lists(block, min_size=1, max_size=3).map(tuple)
        )

    block = st.lists(st.recursive(leaf, grow, max_leaves=max_leaves), min_size=1, max_size=4).map(tuple)
    tasks = st.lists(block, min_size=2, max_size=4).map(tuple)
    return st.builds(lambda arg, blocks: (Node("nursery", arg, blocks),), st.integers(0, 11), tasks)

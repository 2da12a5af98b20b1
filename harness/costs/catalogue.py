"""Accelerators that are known by name: what one chip can do, each figure with its source and date.

A figure is here because somebody published it. What only memory says is left out, and a law that needs it asks the user for
it; any figure can be given in the scenario instead. Prices are not here at all: they are dated inputs of the user.

===========================  ==========================================================================================
figure                       meaning
===========================  ==========================================================================================
`bf16_flop_per_s`            dense bf16 operations a second, a multiplication and an addition counting as two
`hbm_bytes`                  bytes of memory on the chip
`hbm_bytes_per_s`            bytes a second between the chip and that memory
`ici_bytes_per_s`            bytes a second to chips of the same slice, all links, both ways together (NVLink on GPUs)
`dcn_bytes_per_s`            bytes a second of one *host* to hosts of other slices, one way
`chips_per_host`             chips of one host
`slice_shapes`               numbers of chips in which slices are sold; empty where that is not known: any number then
===========================  ==========================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

GB = 10**9
GIB = 1 << 30
TERA = 10**12


@dataclass(frozen=True, slots=True)
class Figure:
    """One published figure.

    Attributes:
        value: in the unit that the name of the field says.
        source: who published it.
        date: when, as far as is known.

    """

    value: float
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class CataloguedChip:
    """What is known of one generation. None: nobody was found who says so.

    Attributes:
        name: as a scenario writes it.
        figures: field → figure.
        slice_shapes: chips of the slices on sale, ascending; empty: not known.
        shapes_source: who says so.

    """

    name: str
    figures: dict[str, Figure]
    slice_shapes: tuple[int, ...] = ()
    shapes_source: str = ""


_GOOGLE_V5E = ("Google Cloud documentation, TPU v5e", "mid 2026")
_GOOGLE_V5P = ("Google Cloud documentation, TPU v5p", "mid 2026")
_GOOGLE_V6E = ("Google Cloud documentation, TPU v6e", "mid 2026")
_GOOGLE_7X = ("Google Cloud documentation, TPU7x (Ironwood)", "mid 2026")
_GKE_7X = ("Google Cloud documentation, Ironwood in GKE: a VM has four chips", "mid 2026")
_SCALING = ("JAX scaling book", "February 2025")
_H100 = ("NVIDIA H100 SXM data sheet; bf16 is half of its figure with sparsity", "2022 to 2026")
_H200 = ("NVIDIA H200 SXM data sheet; bf16 is half of its figure with sparsity", "2023 to 2026")
_B200 = ("corrected by what the driver reports", "March 2026")
_B200_PEAK = ("HGX B200 at 1,000 W, dense, as quoted from NVIDIA by glennklockwood.com", "2025")
_B200_LINK = ("NVLink 5, docs.vultr.com hardware overview of HGX B200", "March 2026")

_EIGHT_BY_EIGHT = (1, 4, 8, 16, 32, 64, 128, 256)
_CUBES = (4, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 6144)

CATALOGUE: dict[str, CataloguedChip] = {
    chip.name: chip
    for chip in (
        CataloguedChip(
            "v5e",
            {
                "bf16_flop_per_s": Figure(197 * TERA, *_GOOGLE_V5E),
                "hbm_bytes": Figure(16 * GB, *_GOOGLE_V5E),
                "hbm_bytes_per_s": Figure(819 * GB, *_GOOGLE_V5E),
                "ici_bytes_per_s": Figure(400 * GB, *_GOOGLE_V5E),
                "dcn_bytes_per_s": Figure(25 * GB, "Google Cloud documentation, TPU v5e: two NICs of 100 Gbit/s", "mid 2026"),
                "chips_per_host": Figure(8, *_GOOGLE_V5E),
            },
            _EIGHT_BY_EIGHT,
            "Google Cloud documentation, TPU v5e: slice shapes 1x1 to 16x16",
        ),
        CataloguedChip(
            "v5p",
            {
                "bf16_flop_per_s": Figure(459 * TERA, *_GOOGLE_V5P),
                "hbm_bytes": Figure(95 * GIB, *_GOOGLE_V5P),
                "hbm_bytes_per_s": Figure(2765 * GB, *_GOOGLE_V5P),
                "ici_bytes_per_s": Figure(1200 * GB, *_GOOGLE_V5P),
                "dcn_bytes_per_s": Figure(25 * GB, "Google Cloud documentation, TPU v5p: 50 Gbit/s a chip", "mid 2026"),
                "chips_per_host": Figure(4, *_GOOGLE_V5P),
            },
            _CUBES,
            "Google Cloud documentation, TPU v5p: most common shapes, 2x2x1 to 16x16x24; most but not all of those above 4x4x4",
        ),
        CataloguedChip(
            "v6e",
            {
                "bf16_flop_per_s": Figure(918 * TERA, *_GOOGLE_V6E),
                "hbm_bytes": Figure(32 * GB, *_GOOGLE_V6E),
                "hbm_bytes_per_s": Figure(1638 * GB, *_GOOGLE_V6E),
                "ici_bytes_per_s": Figure(800 * GB, *_GOOGLE_V6E),
                # Google's page of TPU7x says 100 Gbit/s a v6e chip, which would be 100 GB/s for eight; the lower figure stands.
                "dcn_bytes_per_s": Figure(25 * GB, *_SCALING),
                "chips_per_host": Figure(8, *_GOOGLE_V6E),
            },
            _EIGHT_BY_EIGHT,
            "Google Cloud documentation, TPU v6e: slice shapes 1x1 to 16x16",
        ),
        CataloguedChip(
            "7x",
            {
                "bf16_flop_per_s": Figure(2307 * TERA, *_GOOGLE_7X),
                "hbm_bytes": Figure(192 * GIB, *_GOOGLE_7X),
                "hbm_bytes_per_s": Figure(7380 * GB, *_GOOGLE_7X),
                "ici_bytes_per_s": Figure(1200 * GB, *_GOOGLE_7X),
                "dcn_bytes_per_s": Figure(50 * GB, "Google Cloud documentation, TPU7x: 100 Gbit/s a chip", "mid 2026"),
                "chips_per_host": Figure(4, *_GKE_7X),
            },
        ),
        CataloguedChip(
            "h100",
            {
                "bf16_flop_per_s": Figure(989 * TERA, *_H100),
                "hbm_bytes": Figure(80 * GB, *_H100),
                "hbm_bytes_per_s": Figure(3350 * GB, *_H100),
                "ici_bytes_per_s": Figure(900 * GB, *_H100),
            },
        ),
        CataloguedChip(
            "h200",
            {
                "bf16_flop_per_s": Figure(989 * TERA, *_H200),
                "hbm_bytes": Figure(141 * GB, *_H200),
                "hbm_bytes_per_s": Figure(4800 * GB, *_H200),
                "ici_bytes_per_s": Figure(900 * GB, *_H200),
            },
        ),
        CataloguedChip(
            "b200",
            {
                "bf16_flop_per_s": Figure(2250 * TERA, *_B200_PEAK),
                "hbm_bytes": Figure(180 * GB, *_B200),
                "hbm_bytes_per_s": Figure(7670 * GB, *_B200),
                "ici_bytes_per_s": Figure(1800 * GB, *_B200_LINK),
            },
        ),
    )
}
"""Chips by name. How GPUs are hosted, connected beyond NVLink and sold differs from vendor to vendor: the user says."""

FIGURES = ("bf16_flop_per_s", "hbm_bytes", "hbm_bytes_per_s", "ici_bytes_per_s", "dcn_bytes_per_s", "chips_per_host")
"""Every figure a chip may have."""

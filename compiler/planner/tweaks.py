"""Tweaks of segments that the cost estimate cannot distinguish: tried on all segments of a program, one tweak after the other.

`CHANGES` has them in the order of the trials.  Prefetch of weights is no tweak: with 64 to 512 KiB MobileNet and ShuffleNet
are no faster at level `none`.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.cost.ranking import CHUNK_BUDGETS, RANKING_SIZE, conv_tiling, least_tail_rank
from compiler.ops.conv import ConvSpec, product_of
from compiler.plan.plan import ConvTiling, Infeasible, Split, VectorTiling
from compiler.segment.batch_tiles import counts_together, tile_batch
from compiler.segment.channel_splits import pass_counts
from compiler.segment.core_channels import can_split
from compiler.segment.engine_split import divisible
from compiler.segment.pool_fusion import feed_refusal
from compiler.segment.segment import StripBlocks, largest_strip
from compiler.space.decode import decode
from compiler.space.gene import (
    FED_ROWS,
    FORMULA,
    PINS,
    UB_SLOTS,
    Gene,
    block_counts,
    iterations,
    keeps_weights,
    lower_counts,
    outline,
    pins_of,
    recut,
    working_cores,
)
from compiler.space.knobs import part_counts
from compiler.target.target_graph import TargetGraph

_FAR = 1024  # records, eight times the usual lookahead
_HALF, _TWICE = 1, 2  # places in `gene.UB_SLOTS` of half and twice the usual slots


Change = Callable[[TargetGraph, Gene], Gene]


def apply_if_fits(target_graph: TargetGraph, gene: Gene, change: Change) -> Gene:
    """Changed gene, or the gene itself if the changed one does not fit."""
    changed = change(target_graph, gene)
    return changed if changed == gene or decode(target_graph, changed) is not None else gene


def _small_chunks(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Use smaller chunks of streamed weights, so that more other weights stay (indices in `cost.ranking.CHUNK_BUDGETS`)."""
    del target_graph
    return gene._replace(chunk=4)


def _smaller_chunks(target_graph: TargetGraph, gene: Gene) -> Gene:
    del target_graph
    return gene._replace(chunk=2)


def _whole_weights(target_graph: TargetGraph, gene: Gene) -> Gene:
    return gene if keeps_weights(target_graph, gene) else gene._replace(weights="resident")


def _sliding(target_graph: TargetGraph, gene: Gene) -> Gene:
    del target_graph
    return gene._replace(sliding=True, window=FORMULA) if gene.stop - gene.start > 1 else gene


def _window_alive(window: int, target_graph: TargetGraph, gene: Gene) -> Gene:
    """Keep `window` blocks alive, in the fewest blocks that fit so: engines wait less for each other, and L1 has room for smaller blocks.

    More blocks that are not lower need as much room and take longer.
    """
    if gene.stop - gene.start == 1 or iterations(target_graph, gene) == 1 or (gene.sliding and gene.window == window):
        return gene
    for blocks in lower_counts(target_graph, gene.start, gene.stop):
        if blocks >= gene.blocks:
            changed = gene._replace(blocks=blocks, sliding=True, window=window, images=1 if blocks > 1 else gene.images)
            if decode(target_graph, changed) is not None:
                return changed
    return gene


def _two_alive(target_graph: TargetGraph, gene: Gene) -> Gene:
    return _window_alive(2, target_graph, gene)


def four_alive(target_graph: TargetGraph, gene: Gene) -> Gene:
    return _window_alive(4, target_graph, gene)


SLIDING: tuple[Change, ...] = (_two_alive, four_alive)
"""Changes of `CHANGES` that a search measures first, on every segment that it begins with."""


def move_share(place: int, eighths: int, target_graph: TargetGraph, gene: Gene) -> Gene:
    """Move some eighths of a segment's depthwise convolution, the one at `place`, to VECTOR or back; all other tilings stay."""
    plane_counts = divisible(target_graph, gene.start, gene.stop)
    candidates = [index for index, planes in enumerate(plane_counts) if planes]
    if place >= len(candidates):
        return gene
    index, shares = candidates[place], list(gene.on_vector or (0,) * len(plane_counts))
    shares[index] = min(plane_counts[index] - 1, max(0, shares[index] + round(eighths * max(1.0, plane_counts[index] / 8))))
    changed = gene._replace(on_vector=tuple(shares) if any(shares) else ())
    if not gene.pinned:
        return changed
    plan = decode(target_graph, changed._replace(pinned=()))
    if plan is None:
        return gene
    return changed._replace(pinned=(*gene.pinned[: PINS * len(plane_counts)], *pins_of([share.tiling for share in plan.on_vector])))


def _on_grid(step: int, target_graph: TargetGraph, gene: Gene) -> Gene:
    """Divide the channels among more or fewer parts of the cores, in the fewest blocks that all cores of a part share equally.

    A core reads a share of the constants and a share of the rows: which grid balances them depends on the loads that neighbours hide.
    step: in the numbers of parts that a grid may have, one and all cores among them.
    """
    width, dealt = len(gene.cores), target_graph.images // gene.images
    counts = [1, *part_counts(width), width] if part_counts(width) else []
    place = counts.index(gene.channels) + step if gene.channels in counts else -1
    if not 0 <= place < len(counts) or working_cores(target_graph, gene) != gene.cores:
        return gene
    channels = counts[place]
    heights = block_counts(target_graph, gene.start, gene.stop)
    blocks = next((count for count in heights if count * dealt * channels % width == 0), 0)
    if not blocks or (channels > 1 and not can_split(target_graph, gene.start, gene.stop, channels)):
        return gene
    split: Split = "channels" if channels > 1 else "rows"
    parts = channels if 1 < channels < width else 0
    return recut(gene, split=split, parts=parts, blocks=blocks, cached=-1 if blocks > 1 else 0)


def _more_parts(target_graph: TargetGraph, gene: Gene) -> Gene:
    return _on_grid(1, target_graph, gene)


def _fewer_parts(target_graph: TargetGraph, gene: Gene) -> Gene:
    return _on_grid(-1, target_graph, gene)


def _one_slot(target_graph: TargetGraph, gene: Gene) -> Gene:
    return gene._replace(prefetch=1) if iterations(target_graph, gene) > 1 else gene


def _half_the_blocks(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Halve the number of blocks on cores that may form grids, or take the next lower one, if all cores keep equally many.

    A block computes while its constants come in; the blocks behind it have to wait for them.
    """
    width, dealt = len(gene.cores), gene.channels * (target_graph.images // gene.images)
    heights = [count for count in block_counts(target_graph, gene.start, gene.stop) if count < gene.blocks] if part_counts(width) else []
    fewer = [count for count in heights if count * dealt % width == 0]
    if not fewer:
        return gene
    blocks = max([count for count in fewer if 2 * count <= gene.blocks], default=fewer[-1])
    return recut(gene, blocks=blocks, cached=gene.cached if blocks > 1 else 0)


def _twice_the_blocks(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Double the number of blocks if there are several: from one to two is too large a change."""
    twice = 2 * gene.blocks
    return gene._replace(blocks=twice) if gene.blocks > 1 and twice <= block_counts(target_graph, gene.start, gene.stop)[-1] else gene


def _strip(target_graph: TargetGraph, gene: Gene) -> StripBlocks | Infeasible:
    """Largest strip of the gene's segment: if something fits in it, it fits in all strips."""
    together = tile_batch(target_graph, gene.images)
    return together if isinstance(together, Infeasible) else largest_strip(together, outline(target_graph, gene))


def _little_behind(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Choose the tiling of the last product with the least work after the load of its resident weights: DDR is idle then."""
    plan, strip = decode(target_graph, gene), _strip(target_graph, gene)
    if plan is None or isinstance(strip, Infeasible) or gene.pinned or gene.passes > 1 or gene.input_passes > 1:
        return gene
    strip_graph, layout = strip
    for k in reversed(range(gene.stop - gene.start)):
        product, tiling = product_of(strip_graph.operators[gene.start + k]), plan.tilings[k]
        if product is not None and product.weight_blocks and isinstance(tiling, ConvTiling):
            if tiling.weights == "streamed":
                break
            choices = list(gene.choices or (0,) * (gene.stop - gene.start))
            choices[k] = least_tail_rank(strip_graph, product, layout.rows(k), layout.inside[k])
            return gene._replace(choices=tuple(choices) if any(choices) else ())
    return gene


def _overtaking(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Let loads that are ready overtake loads that wait, for fast DDR."""
    del target_graph
    return gene._replace(overtake=True)


def _far_ahead(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Schedule with a long lookahead, so that chains of later records run in parallel with the current ones: for segments with branches."""
    del target_graph
    return gene._replace(lookahead=_FAR)


def _as_emitted(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Take ready records in the order of emission, not by longest chain: for loads that arrive in that order."""
    del target_graph
    return gene._replace(urgent=False)


def _vector_tiles(place: int, target_graph: TargetGraph, gene: Gene) -> Gene:
    """Use the slots `gene.UB_SLOTS[place]` for all operators on VECTOR."""
    choices = list(gene.choices or (0,) * (gene.stop - gene.start))
    for index, spec in enumerate(target_graph.operators[gene.start : gene.stop]):
        if spec.runs_on != "CUBE":
            choices[index] = place
    return gene._replace(choices=tuple(choices) if any(choices) else ())


def _fed_pools(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Feed pools by convolutions of the segment, in the highest tiles that fit: MTE1 need not load their inputs."""
    pools = [
        k
        for k in range(gene.start, gene.stop)
        if target_graph.operators[k].runs_on != "CUBE" and not feed_refusal(target_graph, gene.start, k)
    ]
    for place in range(len(FED_ROWS) if pools and not gene.pinned else 0):
        choices = list(gene.choices or (0,) * (gene.stop - gene.start))
        for k in pools:
            choices[k - gene.start] = len(UB_SLOTS) + place
        changed = gene._replace(choices=tuple(choices))
        if _feeds(target_graph, changed):
            return changed
    return gene


def _fed_pools_alive(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Feed pools with four blocks alive at once: there is room if the pools' inputs are not in L1."""
    fed = _fed_pools(target_graph, gene)
    changed = gene if fed == gene else four_alive(target_graph, fed)
    return changed if changed not in (fed, gene) and _feeds(target_graph, changed) else gene


def _feeds(target_graph: TargetGraph, gene: Gene) -> bool:
    plan = decode(target_graph, gene)
    return plan is not None and any(isinstance(tiling, VectorTiling) and tiling.fed for tiling in plan.tilings)


def _large_vector_tiles(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Use fewer, longer instructions."""
    return _vector_tiles(_TWICE, target_graph, gene)


def _small_vector_tiles(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Give operators separate slots in UB, so that none waits for another's last tile, and the first tile is finished earlier."""
    return _vector_tiles(_HALF, target_graph, gene)


def _channels_first(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Compute the first channels of products with resident weights first: a depthwise convolution or VECTOR may go on with them."""
    plan, strip = decode(target_graph, gene), _strip(target_graph, gene)
    if plan is None or isinstance(strip, Infeasible) or gene.pinned or gene.passes > 1:
        return gene
    (strip_graph, layout), choices = strip, list(gene.choices or (0,) * (gene.stop - gene.start))
    for k, tiling in enumerate(plan.tilings):
        product = product_of(strip_graph.operators[gene.start + k])
        if product is not None and product.n1 > 1 and isinstance(tiling, ConvTiling) and tiling.weights == "resident" and layout.inside[k]:
            choices[k] = _first_of_channels(strip_graph, product, layout.rows(k)) or choices[k]
    return gene._replace(choices=tuple(choices) if any(choices) else ())


def _first_of_channels(target_graph: TargetGraph, product: ConvSpec, rows: int) -> int:
    """Rank of the best tiling by estimate that computes some channels of all pixels before others; 0 if there is none."""
    for place in range(RANKING_SIZE):
        t = conv_tiling(target_graph, product, rows, True, True, 0, place)
        if t is not None and t.tile_n1 < product.n1 and (t.order == "n" or t.tile_m >= rows * product.out_w):
            return place
    return 0


def _tiles_of_pixels(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Use the best tiling with several pixel tiles for products with a single pixel tile: readers and FIXPIPE begin earlier."""
    plan, strip = decode(target_graph, gene), _strip(target_graph, gene)
    if plan is None or isinstance(strip, Infeasible) or gene.pinned:
        return gene
    (strip_graph, layout), choices = strip, list(gene.choices or (0,) * (gene.stop - gene.start))
    for k, tiling in enumerate(plan.tilings):
        product, pixels = product_of(strip_graph.operators[gene.start + k]), layout.rows(k) * strip_graph.operators[gene.start + k].out_w
        if product is None or not isinstance(tiling, ConvTiling) or tiling.tile_m < pixels:
            continue
        resident, chunk = tiling.weights == "resident", (tiling.chunk_n1, tiling.chunk_k1)
        for place in range(RANKING_SIZE):
            t = conv_tiling(strip_graph, product, layout.rows(k), layout.inside[k], resident, CHUNK_BUDGETS[gene.chunk], place)
            if t is not None and t.tile_m < pixels and (resident or (t.chunk_n1, t.chunk_k1) == chunk):
                choices[k] = place
                break
    return gene._replace(choices=tuple(choices) if any(choices) else ())


def _more_images(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Put the next larger number of whole images into a block: streamed weights are loaded less often."""
    count = next((count for count in counts_together(target_graph) if count > gene.images), 0)
    return recut(gene, blocks=1, cached=0, images=count) if count and gene.split == "rows" else gene


def _fewer_images(target_graph: TargetGraph, gene: Gene) -> Gene:
    """Put fewer images into a block: one is computed while the next is loaded."""
    return recut(gene, images=max(count for count in counts_together(target_graph) if count < gene.images)) if gene.images > 1 else gene


def _in_passes(least: int, target_graph: TargetGraph, gene: Gene) -> Gene:
    """Use `least` passes or more, with the present tilings: VECTOR handles a pass while CUBE multiplies the next one."""
    count = next((count for count in pass_counts(target_graph, gene.start, gene.stop) if count >= least), 0) if gene.passes > 1 else 0
    plan = decode(target_graph, gene) if count > gene.passes else None
    return gene if plan is None else gene._replace(passes=count, pinned=pins_of(plan.tilings))


def _six_passes(target_graph: TargetGraph, gene: Gene) -> Gene:
    return _in_passes(6, target_graph, gene)


def _twelve_passes(target_graph: TargetGraph, gene: Gene) -> Gene:
    return _in_passes(12, target_graph, gene)


CHANGES: tuple[Change, ...] = (
    _half_the_blocks, _fewer_parts, _more_parts, _tiles_of_pixels, *SLIDING, _small_chunks, _smaller_chunks, _whole_weights,
    _large_vector_tiles, _small_vector_tiles, _little_behind, _fed_pools, _fed_pools_alive, _sliding, _one_slot, _twice_the_blocks,
    _channels_first, _overtaking, _as_emitted, _far_ahead, _six_passes, _twelve_passes, _more_images, _fewer_images,
)  # fmt: skip

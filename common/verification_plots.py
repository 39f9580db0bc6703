"""Pictures of a verification: ROC, scores of same and different pairs, the worst pairs. PNG files.

ROC and scores are drawn by matplotlib.
"""
import os

import cv2
import numpy as np

from common.images import decode_bgr
from common.pair_scores import roc
from common.plotting import new_figure

TILE, GAP, TEXT = 112, 12, 20        # pixels: of a face, between pairs, of the line above a pair
NUM_WORST, COLUMNS = 24, 4           # pairs of each kind; side by side
BINS, CURVE = 100, 2000               # of the scores; most points of a ROC, so that millions of pairs can be drawn
_WHITE, _RED, _GREY = (255, 255, 255), (60, 60, 255), (150, 150, 150)


def draw_roc(path, results):
    """path: or a stream; results: {name: VerificationResult}, of which distances, same and auc are used.

    The false accept rate is logarithmic, from one different pair upwards.
    """
    figure = new_figure('the ROC', figsize=(7, 5), layout='constrained')
    axes = figure.subplots()
    least = 0.1
    for name, result in results.items():
        far, tar = roc(result.distances, result.same)
        if np.isnan(far).any() or np.isnan(tar).any():
            continue
        smallest = 1 / np.count_nonzero(~result.same)
        first = np.count_nonzero(far == 0) - 1            # before that, no different pair is accepted either
        shown = first + np.unique(np.searchsorted(far[first:], np.geomspace(smallest, 1, CURVE), side='right') - 1)
        far, tar = far[shown], tar[shown]
        axes.step(np.maximum(far, smallest), tar, where='post', label='%s, area %.4f' % (name, result.auc))
        least = min(least, smallest)
    axes.set(xscale='log', xlim=(least, 1), xlabel='false accept rate (FAR)',
             ylabel='true accept rate (TAR)', title='ROC')
    axes.grid(True, which='both', alpha=0.3)
    if axes.lines:
        axes.legend(loc='lower right')
    figure.savefig(path, dpi=110)


def draw_scores(path, name, result):
    """Two histograms over the cosine, and the threshold."""
    figure = new_figure('the histogram', figsize=(7, 4), layout='constrained')
    axes = figure.subplots()
    cosines = 1 - result.distances / 2
    edges = np.linspace(cosines.min() - 0.01, cosines.max() + 0.01, BINS + 1)
    for kind, label in ((result.same, 'same person'), (~result.same, 'different people')):
        axes.hist(cosines[kind], edges, alpha=0.6, label='%s, %d pairs' % (label, np.count_nonzero(kind)))
    threshold = 1 - result.threshold / 2
    axes.axvline(threshold, color='black', linewidth=1, label='threshold %.3f' % threshold)
    axes.set(xlabel='cosine of the two embeddings, with flip', ylabel='pairs', title=name)
    axes.legend()
    figure.savefig(path, dpi=110)


def draw_worst(path, vset, result):
    """Left the different pairs that are nearest, right the same pairs that are farthest, worst first.

    Above each pair stand its number and its cosine, red where the threshold judges it wrongly.
    """
    accepts, rejects = worst_pairs(result)
    blocks = [_block(title, vset, pairs, result) for title, pairs in (
        ('different people, the nearest', accepts), ('same person, the farthest', rejects))]
    height = max(len(block) for block in blocks)
    blocks = [np.pad(block, ((0, height - len(block)), (0, 0), (0, 0))) for block in blocks]
    cv2.imwrite(path, np.concatenate([blocks[0], np.full((height, GAP, 3), 80, np.uint8), blocks[1]], axis=1))


def worst_pairs(result):
    """-> (different pairs, the nearest first; same pairs, the farthest first): numbers, NUM_WORST of each or less."""
    order = np.argsort(result.distances, kind='stable')
    return order[~result.same[order]][:NUM_WORST], order[::-1][result.same[order[::-1]]][:NUM_WORST]


def _block(title, vset, pairs, result):
    width, high = 2 * TILE + GAP, TILE + TEXT + GAP
    rows = max(1, -(-len(pairs) // COLUMNS))
    block = np.zeros((TEXT + GAP + rows * high, COLUMNS * width, 3), np.uint8)
    _write(block, title, GAP // 2, TEXT, _WHITE)
    for place, pair in enumerate(pairs.tolist()):
        top, left = TEXT + GAP + place // COLUMNS * high, GAP // 2 + place % COLUMNS * width
        wrong = (result.distances[pair] < result.threshold) != result.same[pair]
        _write(block, 'pair %d: %.3f' % (pair, 1 - result.distances[pair] / 2), left, top + TEXT - 6,
               _RED if wrong else _GREY)
        for side in (0, 1):
            face = decode_bgr(vset.distinct[vset.position[2 * pair + side]], (TILE, TILE))
            start = left + side * TILE
            block[top + TEXT:top + TEXT + TILE, start:start + TILE] = face
    return block


def _write(picture, text, left, bottom, colour):
    cv2.putText(picture, text, (left, bottom), cv2.FONT_HERSHEY_SIMPLEX, 0.5, colour, 1, cv2.LINE_AA)


def draw_all(folder, sets, results):
    """roc.png, and NAME-scores.png and NAME-worst.png of each set, into a folder."""
    draw_roc(os.path.join(folder, 'roc.png'), results)
    for vset in sets:
        draw_scores(os.path.join(folder, vset.name + '-scores.png'), vset.name, results[vset.name])
        draw_worst(os.path.join(folder, vset.name + '-worst.png'), vset, results[vset.name])

"""How fast pairs are judged: the exact search of pair_scores beside the usual grid of 400 thresholds.

    python -m benchmarks.verification [--pairs 12000] [--rounds 7]

Ten folds of the same random distances. The two take turns; the times are medians of the rounds, and so is the ratio,
taken within each round. Embedding the images is not part of this.
  grid     for every fold and threshold 0, 0.01 ... 3.99 the accuracy on the other folds, in NumPy
  exact    fold_accuracy: one sort, then one running sum per fold
"""
import argparse
import time

import numpy as np

from common.pair_scores import fold_accuracy

NUM_FOLDS = 10


def grid_accuracy(distances, same, num_folds):
    """Mean accuracy over the folds at the best of 400 thresholds."""
    accuracies = []
    for judged in np.array_split(np.arange(len(same)), num_folds):
        others = np.setdiff1d(np.arange(len(same)), judged)
        thresholds = np.arange(0, 4, 0.01)
        hits = [np.count_nonzero((distances[others] < threshold) == same[others]) for threshold in thresholds]
        accuracies.append(np.mean((distances[judged] < thresholds[np.argmax(hits)]) == same[judged]))
    return float(np.mean(accuracies))


def timed_ms(function, *arguments):
    begin = time.perf_counter()
    result = function(*arguments)
    return 1e3 * (time.perf_counter() - begin), result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--pairs', type=int, default=12000, help='pairs of the set')
    parser.add_argument('--rounds', type=int, default=7)
    args = parser.parse_args()
    same = np.arange(args.pairs) % 2 == 0
    distances = np.clip(np.random.RandomState(0).normal(np.where(same, 1.0, 1.8), 0.3), 0, 4)
    rounds = []
    for _ in range(args.rounds + 1):                              # the first one warms up
        grid_ms, grid = timed_ms(grid_accuracy, distances, same, NUM_FOLDS)
        exact_ms, (exact, _) = timed_ms(fold_accuracy, distances, same, NUM_FOLDS)
        rounds.append((grid_ms, exact_ms, grid_ms / exact_ms))
    grid_ms, exact_ms, ratio = np.median(rounds[1:], axis=0)
    print('%d pairs, %d folds: grid %.1f ms (accuracy %.4f), exact %.2f ms (accuracy %.4f), %.0f times as fast'
          % (args.pairs, NUM_FOLDS, grid_ms, grid, exact_ms, exact, ratio))


if __name__ == '__main__':
    main()

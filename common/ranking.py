"""How often a face is found among very many others (MegaFace): ranks, CMC and TAR at FAR with a million distractors.

Probes are images of known people, two or more each; distractors are images of others. The mate of a probe, another
image of the same person, is put among the distractors and ranked by its cosine. All is computed block by block.
"""
import sys
import time

try:
    import common  # noqa: F401
except ModuleNotFoundError:          # run by its path, from a checkout that is not installed
    import as_package  # noqa: F401

import numpy as np

from common.command import require_range, run_tool, tool_parser
from common.distractor_ranks import DistractorRanks, peak_bytes
from common.embedding_files import EmbeddingFile, noise_mask
from common.errors import UserError
from common.json_files import check_json_path, write_json
from common.pair_scores import rates_by_name
from common.progress import progress_bar

RANKS = (1, 10, 100, 1000)


def make_parser():
    parser = tool_parser('shardface-rank', __doc__, 'shardface-rank --probes facescrub --distractors megaface '
                         '--probe-noise facescrub_noises.txt --distractor-noise megaface_noises.txt --json result.json')
    add = parser.add_argument
    add('--probes', required=True, metavar='X', help='folder that shardface-embed made, or (n, D) floats in an .npy')
    add('--probe-labels', metavar='X.npy', help='(n,) whole numbers, who is shown (default: labels.npy beside the '
        'embeddings)')
    add('--distractors', required=True, metavar='X', help='folder or .npy, too')
    add('--probe-noise', metavar='X.txt', help='names of probes to leave out, a line each')
    add('--distractor-noise', metavar='X.txt', help='names of distractors to leave out')
    add('--probe-names', metavar='X.txt', help='names of the rows (default: names.txt beside the embeddings)')
    add('--distractor-names', metavar='X.txt', help='the same of the distractors')
    add('--seed', type=int, default=0, metavar='N', help='draws the smaller numbers of distractors (default: 0)')
    add('--block-size', type=int, default=4096, metavar='N', help='distractors at once (default: %(default)s)')
    add('--json', metavar='X.json', help='write the figures, too; a file that is there is replaced')
    return parser


def run(args):
    require_range(args.block_size, '--block-size', 1, 1 << 20)
    require_range(args.seed, '--seed', 0, 2**32 - 1)
    if args.json:
        check_json_path(args.json)
    probes, distractors = EmbeddingFile(args.probes, '--probes'), EmbeddingFile(args.distractors, '--distractors')
    if probes.embedding_size != distractors.embedding_size:
        raise UserError('%s has embeddings of %d numbers, %s of %d: they are of different networks' % (
            probes.path, probes.embedding_size, distractors.path, distractors.embedding_size))
    kept_probes = kept(probes, args.probe_names, args.probe_noise, '--probe-noise')
    kept_distractors = kept(distractors, args.distractor_names, args.distractor_noise, '--distractor-noise')
    labels = probes.labels(args.probe_labels)[kept_probes]
    counts = subset_sizes(int(kept_distractors.sum()))
    ranks = DistractorRanks(probes.units(0, len(probes))[kept_probes], check_labels(labels, probes), len(counts))
    print('at most %d MiB of memory beside the files' % -(-peak_bytes(
        len(labels), probes.embedding_size, len(ranks.cosines), len(distractors), len(counts), args.block_size) >> 20))
    seconds = rank_all(ranks, distractors, kept_distractors, counts, args)
    found = figures(ranks, labels, counts)
    found.update(left_out={'probes': int((~kept_probes).sum()), 'distractors': int((~kept_distractors).sum())},
                 seconds=round(seconds, 3), seed=args.seed)
    print('\n'.join(report(found)))
    if args.json:
        write_json(args.json, found)


def kept(embeddings, names, noise, flag):
    """(n,) bool: the images that no noise list names."""
    mask = np.ones(len(embeddings), bool)
    if noise:
        mask = ~noise_mask(embeddings.names(names), noise, flag)
    if not mask.any():
        raise UserError('%s %s names all images of %s' % (flag, noise, embeddings.path))
    return mask


def check_labels(labels, probes):
    """labels (P,). UserError if there is nothing to rank."""
    if (labels < 0).any():
        raise UserError('%s: images of unknown people (label -1) are no probes; --input of shardface-embed takes '
                        'IDENTITY/PHOTO.jpg' % probes.path)
    if len(np.unique(labels)) == len(labels):
        raise UserError('%s: no person has two images, so no probe has a mate' % probes.path)
    return labels


def subset_sizes(count):
    """[10, 100, ..., count]"""
    return [size for size in (10**power for power in range(1, 12)) if size < count] + [count]


def rank_all(ranks, distractors, mask, counts, args):
    """Give all distractors to DistractorRanks; returns the seconds. Smaller sets are drawn, each within the next."""
    place = np.full(len(mask), -1, np.int64)
    place[mask] = np.random.RandomState(args.seed).permutation(counts[-1])
    levels = np.searchsorted(counts, place, side='right').astype(np.int8)
    began = time.monotonic()
    with progress_bar(total=len(mask), desc='rank', unit=' distractors', disable=None) as bar:
        for start in range(0, len(mask), args.block_size):
            stop = min(start + args.block_size, len(mask))
            here = mask[start:stop]
            ranks.add(distractors.units(start, stop)[here], levels[start:stop][here])
            bar.update(stop - start)
    return max(time.monotonic() - began, 1e-9)


def figures(ranks, labels, counts):
    """What report() prints, for JSON."""
    cmc = {count: {rank: float(np.mean(found <= rank)) for rank in RANKS if rank <= count}
           for count, found in zip(counts, ranks.ranks())}
    return {'probes': len(labels), 'people': len(np.unique(labels)), 'pairs': len(ranks.cosines),
            'distractors': counts[-1], 'cmc': cmc,
            'tar_at_far': rates_by_name(ranks.tar_at_far())}


def report(found):
    """Lines to print."""
    yield '%d probes of %d people, %d pairs, %d distractors; left out %d and %d' % (
        found['probes'], found['people'], found['pairs'], found['distractors'], found['left_out']['probes'],
        found['left_out']['distractors'])
    yield 'distractors' + ''.join('%12s' % ('rank %d' % rank) for rank in RANKS)
    for count, shares in found['cmc'].items():
        yield '%11d' % count + ''.join('%12.4f' % share for share in shares.values())
    for rate, tar in found['tar_at_far'].items():
        yield 'TAR at FAR %s  %.4f' % (rate, tar)
    cosines = found['probes'] * found['distractors']
    yield '%.1f s, %.0f distractors/s, %.1f million cosines/s' % (
        found['seconds'], found['distractors'] / found['seconds'], cosines / found['seconds'] / 1e6)


def main(argv=None):
    return run_tool(make_parser(), run, argv)


if __name__ == '__main__':
    sys.exit(main())

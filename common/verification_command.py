"""How well a trained network tells people apart: accuracy and error rates on verification sets (.bin).

Each distinct image of a set is decoded once and embedded with its mirror image; everything is found from that pass.
Accuracy is the mean over ten folds, each judged at the best threshold of the other nine. All other figures are of the
sum of the embeddings of an image and of its mirror image, and of all pairs at once.
"""
import glob
import math
import os
import sys
import time

try:
    import common  # noqa: F401
except ModuleNotFoundError:          # run by its path, from a checkout that is not installed
    import as_package  # noqa: F401

from common.command import new_folder, refuse_output, run_tool, tool_parser
from common.errors import UserError
from common.json_files import check_json_path, write_json
from common.network_flags import add_network, add_running, check_network_flags, open_embedder
from common.plotting import require_matplotlib
from common.progress import progress_bar
from common.saved_model import model_files, split_model
from common.verification import evaluate, load_bin
from common.verification_plots import draw_all


def make_parser():
    parser = tool_parser('shardface-verify', __doc__, 'shardface-verify --model models/r50-arcface-emore/model,1 '
                         '--data-dir faces_emore --target lfw,cfp_fp,agedb_30 --json result.json --pictures pictures')
    add = parser.add_argument
    add_network(add, required=True)
    add_running(add)
    add('--data-dir', default='.', metavar='DIR', help='folder of the sets (default: the working directory)')
    add('--target', metavar='A,B', help='sets, A.bin and B.bin (default: all .bin files of the folder)')
    add('--json', metavar='X.json', help='write the figures, too; a file that is there is replaced')
    add('--pictures', metavar='DIR', help='write ROC, scores and the worst pairs as PNG files into a new folder')
    return parser


def run(args):
    size = check_flags(args)
    sets = [load_bin(path) for path in find_sets(args.data_dir, args.target)]
    embedder = open_embedder(args, size)
    results, seconds = {}, {}
    for vset in sets:
        began = time.monotonic()
        results[vset.name] = evaluate(vset, with_progress(embedder, vset, args.batch_size), args.batch_size, size)
        seconds[vset.name] = time.monotonic() - began
        print('\n'.join(report(vset, results[vset.name], seconds[vset.name])))
    if args.json:
        sets_found = {vset.name: figures(vset, results[vset.name], seconds[vset.name]) for vset in sets}
        model = model_files(*split_model(args.model))[1]
        write_json(args.json, {'model': model, 'image_size': list(size), 'sets': sets_found})
    if args.pictures:
        with new_folder(args.pictures) as folder:
            os.makedirs(folder, exist_ok=True)
            draw_all(folder, sets, results)
        print('pictures are in %s' % os.path.abspath(args.pictures))


def check_flags(args):
    """(h, w). UsageError, UserError before any work."""
    size = check_network_flags(args)
    if args.json:
        check_json_path(args.json)
    if args.pictures:
        refuse_output(args.pictures, '--pictures')
        require_matplotlib('--pictures')
    return size


def find_sets(folder, target):
    """Paths of the .bin files. UserError names the ones that are not there, and those that are."""
    found = sorted(os.path.splitext(os.path.basename(path))[0]
                   for path in glob.glob(os.path.join(glob.escape(folder), '*.bin')))
    wanted = [name.strip() for name in target.split(',') if name.strip()] if target is not None else found
    if not os.path.isdir(folder):
        raise UserError('--data-dir %s is no folder' % os.path.abspath(folder))
    missing = [name for name in wanted if name not in found]
    if missing or not wanted:
        raise UserError('%s has %s; %s' % (
            os.path.abspath(folder), 'no ' + ', '.join(name + '.bin' for name in missing) if missing else
            'no .bin files' if target is None else 'nothing to verify: --target is empty',
            'its sets are ' + ', '.join(found) if found else 'bin_builder makes sets from photos'))
    return [os.path.join(folder, name + '.bin') for name in dict.fromkeys(wanted)]


def with_progress(embedder, vset, batch_size):
    """embed function for evaluate() that moves a bar on terminals: two calls for each batch."""
    bar = progress_bar(total=2 * math.ceil(len(vset.distinct) / batch_size), desc=vset.name, unit=' batches',
                       disable=None, leave=False)

    def embed(images):
        rows = embedder(images)
        bar.update()
        if bar.n >= bar.total:
            bar.close()
        return rows

    return embed


def report(vset, result, seconds):
    """Lines to print."""
    yield '%s: %d pairs, %d of them same%s' % (vset.name, len(vset.same), vset.same.sum(),
                                               ' (%s)' % result.note if result.note else '')
    yield '  accuracy          %.4f +- %.4f; with flip %.4f +- %.4f' % (
        result.accuracy, result.accuracy_std, result.accuracy_flip, result.accuracy_flip_std)
    yield '  threshold         distance %.4f, cosine %.4f' % (result.threshold, 1 - result.threshold / 2)
    yield '  area under ROC    %.6f; equal error rate %.4f' % (result.auc, result.eer)
    for rate, accepted in result.tar_at_far.items():
        if math.isfinite(accepted):
            yield '  TAR at FAR %-6g %.4f' % (rate, accepted)
    yield '  XNorm             %.3f' % result.xnorm
    yield '  time              %.1f s, %.0f images/s (with mirror images)' % (
        seconds, 2 * len(vset.distinct) / max(seconds, 1e-9))


def figures(vset, result, seconds):
    """What report() prints, for JSON."""
    return dict(result.figures(), pairs=len(vset.same), same=int(vset.same.sum()), images=len(vset.distinct),
                folds=result.num_folds, seconds=round(seconds, 3), note=result.note)


def main(argv=None):
    return run_tool(make_parser(), run, argv)


if __name__ == '__main__':
    sys.exit(main())

"""Write a trained network in the forms in which it is used: an inference symbol and its parameters, ONNX, centers.

The embedding is that of the checkpoint; labels, dropout and half precision are left out.
"""
import os
import sys

try:
    import common  # noqa: F401
except ModuleNotFoundError:          # run by its path, from a checkout that is not installed
    import as_package  # noqa: F401

from common.center_files import CenterRanges, labels_path, write_centers
from common.command import parse_image_size, refuse_output, run_tool, tool_parser
from common.errors import UsageError, UserError
from common.inference_model import difference, inference_model, sample_embeddings
from common.network_flags import add_network
from common.onnx_writer import import_onnx, write_onnx
from common.rec2image import parse_labels
from common.saved_model import load_model, model_files, split_model

EXAMPLE = """shardface-export --model models/r50-arcface-emore/model,1 --symbol deploy/r50 --onnx deploy/r50.onnx
  shardface-export --model models/r50-arcface-emore/model,1 --centers centers.npy --labels 0-9999"""


def make_parser():
    parser = tool_parser('shardface-export', __doc__, EXAMPLE)
    add = parser.add_argument
    add_network(add, more=' and, for centers, PREFIX-NNNN.head')
    add('--symbol', metavar='PREFIX', help='write PREFIX-symbol.json and PREFIX-0000.params, float32')
    add('--onnx', metavar='X.onnx', help='write ONNX: input data (batch, 3, H, W) float32, 0 to 255, R, G, B, any '
        'batch')
    add('--fold-bn', action='store_true', help='fold batch norms into convolutions and fully connected layers')
    add('--centers', metavar='X', help='write class centers: X.npy and X-labels.npy, or both as X.npz')
    add('--head', metavar='DIR', help='folder of the centers (default: the one of --model)')
    add('--labels', metavar='0-9,100', help='centers of these classes only (default: all)')
    add('--force', action='store_true', help='replace outputs that are there')
    return parser


def run(args):
    check_flags(args)
    size = parse_image_size(args.image_size)
    ranges = parse_labels(args.labels) if args.labels is not None else None
    prefix, number = split_model(args.model) if args.model else (None, None)
    sources = model_files(prefix, number) if args.model else ()
    for path, flag in outputs(args):
        check_output(path, flag, args.force, sources)
    if args.onnx:
        import_onnx()                                          # before any work
    if args.symbol or args.onnx:
        export_network(args, load_model(prefix, number), size)
    if args.centers:
        centers = CenterRanges(args.head or '%s-%04d.head' % (prefix, number), ranges)
        write_centers(args.centers, centers)
        print('%s: %d classes, %s numbers each' % (os.path.abspath(args.centers), centers.count,
                                                  ' x '.join(map(str, centers.row_shape))))


def check_flags(args):
    """UsageError for flags that say nothing to do, or contradict each other."""
    if not (args.symbol or args.onnx or args.centers):
        raise UsageError('nothing to write: give --symbol, --onnx or --centers')
    if not args.model and (args.symbol or args.onnx or not args.head):
        raise UsageError('--model PREFIX,EPOCH is needed' + ('' if args.symbol or args.onnx else ', or --head DIR'))
    if args.centers and not args.centers.endswith(('.npy', '.npz')):
        raise UsageError('--centers %s: a name that ends with .npy or .npz is expected' % args.centers)
    for flag, given, needed in (('--head', args.head, args.centers), ('--labels', args.labels, args.centers),
                                ('--fold-bn', args.fold_bn, args.symbol or args.onnx),
                                ('--layer', args.layer, args.symbol or args.onnx)):
        if given and not needed:
            raise UsageError('%s: is of no use without %s' % (flag, '--centers' if flag in ('--head', '--labels')
                                                             else '--symbol or --onnx'))


def outputs(args):
    """[(path, flag), ...] of all that will be written."""
    paths = [(path, '--symbol') for path in (model_files(args.symbol, 0) if args.symbol else ())]
    paths += [(args.onnx, '--onnx')] if args.onnx else []
    if args.centers:
        paths += [(args.centers, '--centers')]
        paths += [(labels_path(args.centers), '--centers')] if args.centers.endswith('.npy') else []
    return paths


def check_output(path, flag, force, sources):
    """UserError if an output is a source, or cannot be written; with force, a file that is there may be replaced."""
    if os.path.realpath(path) in map(os.path.realpath, sources):
        raise UserError('%s %s would replace the checkpoint: name another' % (flag, path))
    if not os.path.isfile(path):
        refuse_output(path, flag)
    elif not force:
        raise UserError('%s %s is there already: name another, or give --force' % (flag, os.path.abspath(path)))


def export_network(args, saved, size):
    model = inference_model(saved, args.layer, args.fold_bn)
    output, = model.symbol.list_outputs()
    shape = model.infer(size)[output]
    if args.fold_bn:
        plain = sample_embeddings(inference_model(saved, args.layer), size)
        print('batch norms folded: embeddings change by %.1e of their length'
              % difference(sample_embeddings(model, size), plain))
    if args.symbol:
        model.write(args.symbol)
        print('%s: data -> %s, %d numbers' % (model_files(args.symbol, 0)[0], output, shape[1]))
    if args.onnx:
        distance = write_onnx(args.onnx, model, size)
        print('%s: data -> %s, %d numbers; %s' % (
            os.path.abspath(args.onnx), output, shape[1], 'not compared, onnxruntime is not installed' if distance is
            None else 'onnxruntime and MXNet differ by %.1e of their length' % distance))


def main(argv=None):
    return run_tool(make_parser(), run, argv)


if __name__ == '__main__':
    sys.exit(main())

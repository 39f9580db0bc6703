"""Shuffled sets without an index, read front to back."""
from common.errors import UserError


def get_sequential_face_iter(path_imgrec, **options):
    """Takes what FaceImageIter takes. UserError: such sets are not read yet."""
    raise UserError('is_shuffled_rec=True: %s is a shuffled set, which this version does not read; train on the '
                    'indexed set it was made from with is_shuffled_rec=False' % path_imgrec)

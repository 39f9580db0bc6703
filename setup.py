"""Installation: pip install '.[cpu]' or '.[gpu]'."""
import pathlib

from setuptools import setup

# CUDA 11 as mxnet-cu112 needs it, so that no CUDA has to be on the system. nvtx 11.8 lacks a library that MXNet wants.
CUDA = ['nvidia-cublas-cu11==11.11.3.6', 'nvidia-cudnn-cu11==8.9.6.50', 'nvidia-nccl-cu11', 'nvidia-cuda-runtime-cu11',
        'nvidia-cusolver-cu11', 'nvidia-cusparse-cu11', 'nvidia-curand-cu11', 'nvidia-cufft-cu11',
        'nvidia-cuda-nvrtc-cu11', 'nvidia-nvtx-cu11==11.7.91']

# onnx 1.19 and later bring ml_dtypes, which has no release for Python 3.13 and NumPy 1.
EXPORT = ['onnx>=1.17,<1.19', 'onnxruntime>=1.17']

PLOTS = ['matplotlib', 'tensorboardX']

setup(
    name='shardface',
    version='0.1.0',
    description='Trains face recognition with millions of identities on Apache MXNet',
    long_description=(pathlib.Path(__file__).parent / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    license_files=['docs/LICENSE'],
    classifiers=[
        'Intended Audience :: Science/Research',
        'Programming Language :: Python :: 3',
        'Topic :: Scientific/Engineering :: Image Recognition',
    ],
    python_requires='>=3.8,<3.14',
    packages=['common', 'recognition', 'symbols'],
    py_modules=['config', 'train_parall'],
    install_requires=[
        'numpy>=1.20,<2',                                # MXNet 1.9.1 does not know NumPy 2
        'opencv-python-headless>=4.5.4,<4.11',           # later ones want NumPy 2 on Python 3.13
        'easydict',
        'tqdm>=4.57',
        'setuptools<80; python_version>="3.12"',         # MXNet imports distutils, which Python has no more
    ],
    extras_require={
        'cpu': ['mxnet==1.9.1'],
        'gpu': ['mxnet-cu112==1.9.1'] + CUDA,
        'plots': PLOTS,                                  # report.html, TensorBoard, pictures
        'export': EXPORT,                                # ONNX
        'test': ['pytest>=7', 'hypothesis', 'ruff'] + EXPORT + PLOTS,
    },
    entry_points={'console_scripts': ['shardface-train = train_parall:main',
                                      'shardface-doctor = train_parall:doctor', 'rec2shufrec = common.rec2shufrec:main',
                                      'rec_builder = common.rec_builder:main', 'bin_builder = common.bin_builder:main',
                                      'rec_inspect = common.rec_inspect:main', 'rec2image = common.rec2image:main',
                                      'drop_noisy = common.drop_noisy:main',
                                      'shardface-export = common.export:main', 'shardface-embed = common.embed:main',
                                      'shardface-verify = common.verification_command:main',
                                      'shardface-rank = common.ranking:main',
                                      'shardface-templates = common.template_evaluation:main',
                                      'shardface-report = recognition.report:main']},
)

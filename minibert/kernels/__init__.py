"""Fast versions of the operations of ``ops``. Nobody needs them to understand BERT.

Importing this package registers its kernels in the table of ``ops``. They then take over for arrays of
their library and dtype.
"""

from minibert.kernels import cpu, cuda

cpu.register_all()
cuda.register_all()

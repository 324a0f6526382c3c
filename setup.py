"""What pyproject.toml cannot say: the compiled twin of the hot path, built where it can be."""

import os

from setuptools import Extension, setup

# As when it runs (segue/log/hot.py): a wheel for machines that nobody compiled one for.
IS_PURE = bool(os.environ.get("SEGUE_PURE_PYTHON"))

setup(
    ext_modules=[]
    if IS_PURE
    else [
        # Optional: without a compiler the install succeeds and segue.log.hot does the work.
        Extension(
            "segue.log._hot",
            ["src/segue/log/_hot.c"],
            optional=True,
            extra_compile_args=["-O3"],
        )
    ]
)

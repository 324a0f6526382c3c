"""What pyproject.toml cannot say: the compiled twin of the hot path, built where it can be."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        # Optional: without a compiler the install succeeds and segue.log.hot does the work.
        Extension(
            "segue.log._hot",
            ["src/segue/log/_hot.c"],
            optional=True,
            extra_compile_args=["-O3"],
        )
    ]
)

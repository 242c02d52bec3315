"""One training on one process, on several, under Ray Train, or on JAX.

A small transformer learns to write strings backwards, in about a minute a process. Whatever it runs
on, it sees the same batches: N processes read a part of each. After each epoch all is written that
is needed to go on; started again after a kill, it does. Processes on other machines are started
with the environment variable TF_CONFIG and the same command.
"""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

HERE = Path(__file__).resolve().parent
SIZES = {"examples": 12800, "epochs": 6, "units": 64}
SMOKE = {"examples": 256, "epochs": 2, "units": 16}
EXAMPLES = """\
examples:
  train.py                                one process
  train.py --processes 2                  two processes of this machine
  train.py --processes 2 --ray            two workers of Ray Train
  train.py --backend jax --parallel model --devices 2    the weights in two halves
  train.py --backend jax --processes 2    two processes of JAX
"""


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer above 0, got {text!r}")
    return int(text)


def parse_options(arguments=None):
    parser = argparse.ArgumentParser(
        prog="train.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add = parser.add_argument
    add("--processes", type=positive, help="how many train together (default: 1)")
    add("--ray", action="store_true", help="let Ray Train start them, and start them again")
    add("--backend", choices=("tensorflow", "jax"), default="tensorflow")
    add(
        "--parallel",
        choices=("data", "model"),
        default="data",
        help="on JAX: each device has all weights and a part of the batch, or the\n"
        "opposite (default: data)",
    )
    add("--devices", type=positive, help="on JAX: virtual CPU devices of a process (default: 1)")
    add("--restarts", type=int, default=3, help="after a process died (default: %(default)s)")
    add("--examples", type=positive, help=f"to learn from (default: {SIZES['examples']})")
    add("--epochs", type=positive, help=f"(default: {SIZES['epochs']})")
    add("--units", type=positive, help=f"of all layers (default: {SIZES['units']})")
    add("--batch-size", type=positive, default=64, help="of all together (default: %(default)s)")
    add("--threads", type=positive, help="of each process (default: all cores)")
    add("--seed", type=int, default=1, help="of all random numbers (default: %(default)s)")
    add(
        "--output",
        type=Path,
        default=Path("build/distributed"),
        help="folder for backup/, log.csv, model.keras and results.json; all processes\n"
        "must see it (default: %(default)s)",
    )
    add("--smoke", action="store_true", help="tiny sizes: tries the script in seconds")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name, value in (SMOKE if options.smoke else SIZES).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.output = options.output.absolute()
    _check(parser, options)
    return options


def _check(parser, options):
    if options.backend == "jax" and options.ray:
        parser.error("--ray goes with --backend tensorflow")
    if options.backend != "jax" and (options.devices or options.parallel == "model"):
        parser.error(
            "--devices and --parallel model go with --backend jax: on TensorFlow "
            "keras.distribution does nothing"
        )
    if options.examples < options.batch_size:
        parser.error(f"--examples {options.examples}: expected at least --batch-size")
    for package in ("ray",) * options.ray + ("jax",) * (options.backend == "jax"):
        if importlib.util.find_spec(package) is None:
            parser.error(f"{package} is not installed: pip install {package}")


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_options(arguments)
    os.environ["KERAS_BACKEND"] = options.backend
    if options.devices:
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.devices}"
    sys.path.insert(0, str(HERE))
    if options.ray:
        from ray_cluster import train_with_ray

        train_with_ray(options)
    elif options.processes and not options.worker:
        import local_cluster

        command = [sys.executable, __file__, *arguments, "--worker"]
        try:
            local_cluster.run(command, options.processes, options.backend, options.restarts)
        except local_cluster.ClusterError as error:
            print(f"train.py: error: {error}", file=sys.stderr)
            return 1
    elif options.backend == "jax":
        from backwards import train_on_jax

        train_on_jax(options)
    else:
        from backwards import train

        train(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""train.py's training under Ray Train, which starts the workers, on many machines too."""

import os
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import ray.train
from ray.train.tensorflow import TensorflowTrainer

HERE = Path(__file__).resolve().parent


def work(options):
    """What each worker does; Ray has set TF_CONFIG."""
    import sys

    sys.path.insert(0, str(HERE))
    import keras
    from backwards import train

    class Report(keras.callbacks.Callback):
        """Tells Ray how it goes."""

        def on_epoch_end(self, epoch, logs=None):
            ray.train.report({"epoch": epoch, **{k: float(v) for k, v in (logs or {}).items()}})

    train(options, more_callbacks=[Report()])


def train_with_ray(options):
    """Trains with as many workers as `--processes` says; each has one core."""
    workers = options.processes or 1
    places = [str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    ray.init(
        num_cpus=None if "RAY_ADDRESS" in os.environ else max(workers, os.cpu_count()),
        include_dashboard=False,
        runtime_env={"env_vars": variables},
    )
    trainer = TensorflowTrainer(
        work,
        train_loop_config=options,
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(
            storage_path=str(options.output / "ray"),
            failure_config=ray.train.FailureConfig(max_failures=options.restarts),
        ),
    )
    found = trainer.fit()
    print(f"Ray's last report: {found.metrics}")
    ray.shutdown()

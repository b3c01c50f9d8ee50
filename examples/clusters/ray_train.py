"""Train on a Ray cluster: each worker of a TorchTrainer calls lockstep.train, and all train one run
together.

    pip install 'lockstep-images[ray]'             on every host
    export RAY_AUTH_MODE=token                     on every host
    ray get-auth-token --generate                  once; copy ~/.ray/auth_token to every other host
    ray start --head --num-cpus 4                  on the first host
    ray start --address HOST:6379 --num-cpus 4     on every other host
    python ray_train.py --workers 8 --runs /shared/runs --name big cifar10 --towers 8

Without `ray start`, Ray uses this host alone. Start the same command again to resume the run.
"""

import argparse
from pathlib import Path
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

import lockstep


def work(options: dict[str, Any]) -> None:
    """Train, in each of Ray's workers. All pass the same arguments."""
    # resume=True starts the run if there is none yet, so workers that Ray starts again continue
    # where they were.
    lockstep.train(options.pop("recipe"), resume=True, **options)


def main() -> None:
    """Start Ray's workers, wait for them and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", help="name of a recipe, or a recipe file that all hosts have")
    parser.add_argument("--name", required=True, help="name of the run")
    parser.add_argument(
        "--runs",
        required=True,
        type=Path,
        help="folder of the runs, on storage that all hosts share",
    )
    parser.add_argument(
        "--workers", required=True, type=int, help="one process each, at most as many as towers"
    )
    parser.add_argument("--gpu", action="store_true", help="one GPU for each worker")
    parser.add_argument("--towers", type=int)
    parser.add_argument("--steps", type=int)
    given = vars(parser.parse_args())
    workers, gpu = given.pop("workers"), given.pop("gpu")
    runs = given["runs"] = given["runs"].absolute()  # Ray's workers have another current folder.
    trainer = TorchTrainer(
        work,
        train_loop_config={**given, "device": "cuda" if gpu else "cpu"},
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu),
        # The group of Ray's own workers only tells them the address at which Lockstep's processes
        # connect.
        torch_config=TorchConfig(backend="gloo"),
        run_config=RunConfig(
            name=given["name"],
            storage_path=str(runs / "ray"),
            failure_config=FailureConfig(max_failures=3),
        ),
    )
    trainer.fit()
    result = lockstep.Run.open(runs / given["name"]).result()
    assert result is not None  # Else fit() has raised an error.
    print(f"weights_sha256 {result['weights_sha256']}, accuracy {result['accuracy']}")


if __name__ == "__main__":
    main()

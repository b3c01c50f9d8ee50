"""Batches: pictures that wait at the same time are classified as one batch, in one thread."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.errors import DATA, LockstepError
from lockstep.inference.classifier import Classifier, Prediction

TOP = 5  # classes in an answer
BATCH = 32  # pictures in one forward pass, at most. A larger one is no faster on a CPU, and its answers come later.
_DECODERS = 4


Pixels: TypeAlias = NDArray[np.uint8]
Answer: TypeAlias = tuple[Prediction, Pixels | None]  # None if the picture cannot be read


class Batches:
    """The pictures of all requests, from the bytes of a file to a prediction.

    Each is decoded by itself, so that one that takes long delays no batch. `run` must run meanwhile.

    Attributes:
        unanswered: the number of pictures that have no answer yet.
    """

    def __init__(self, classifier: Classifier) -> None:
        self.unanswered = 0
        self._classifier = classifier
        self._decoders = ThreadPoolExecutor(_DECODERS, "decode")
        # A new thread computes with as many threads as the machine has cores, and so with other low-order bits.
        self._computing = ThreadPoolExecutor(1, "classify", torch.set_num_threads, (torch.get_num_threads(),))
        self._decoded: asyncio.Queue[tuple[Pixels, asyncio.Future[Prediction]]] = asyncio.Queue()

    async def answers(self, pictures: Sequence[bytes]) -> list[Answer]:
        """Return the answer for each picture. Raises: LockstepError if this machine cannot decode or classify them."""
        self.unanswered += len(pictures)
        try:
            return await asyncio.gather(*map(self._answer, pictures))
        finally:
            self.unanswered -= len(pictures)

    async def _answer(self, picture: bytes) -> Answer:
        loop = asyncio.get_running_loop()
        try:
            pixels = await loop.run_in_executor(self._decoders, self._classifier.pixels, picture)
        except LockstepError as error:
            if error.code != DATA:
                raise
            return Prediction(0, error=str(error)), None
        prediction: asyncio.Future[Prediction] = loop.create_future()
        self._decoded.put_nowait((pixels, prediction))
        return await prediction, pixels

    async def run(self) -> None:
        """Classify what waits, batch by batch, until the task is cancelled."""
        while True:
            waiting = [await self._decoded.get()]
            while len(waiting) < BATCH and not self._decoded.empty():
                waiting.append(self._decoded.get_nowait())
            # The request of a cancelled one has ended, by its time limit or its client.
            batch = [(pixels, future) for pixels, future in waiting if not future.cancelled()]
            pictures = [pixels for pixels, _ in batch]
            try:
                found = await asyncio.get_running_loop().run_in_executor(self._computing, self._classify, pictures)
            except Exception as error:  # The requests of this batch report it, and the next batch may succeed.
                for _, future in batch:
                    if not future.cancelled():
                        future.set_exception(error)
                continue
            for (_, future), prediction in zip(batch, found, strict=True):
                if not future.cancelled():
                    future.set_result(prediction)

    def _classify(self, pictures: Sequence[Pixels]) -> list[Prediction]:
        return list(self._classifier.predict(pictures, TOP, max(1, len(pictures))))

    def close(self) -> None:
        """End the threads, without the work that they have not begun."""
        for pool in (self._decoders, self._computing):
            pool.shutdown(wait=False, cancel_futures=True)

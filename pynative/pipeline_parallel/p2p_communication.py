"""Single sends and receives between neighbouring stages, for loops of one's own; schedules use `channel`.

Both stages of a pair must call the matching methods, in the same order.
"""

from mindspore import Tensor

from parallel_core.config import ParallelConfig
from pynative import parallel_state
from pynative.pipeline_parallel.channel import pipeline_channel


class P2PPrimitive:
    """Exchanges of hidden states (their shape: `channel.hidden_states_shape`), forward, and of their gradients,
    backward; all tensors of a call are posted together.

    A stage without the neighbour (the first has no previous, the last no next) sends nothing and receives None.

    Args:
        config: the parallel section of the job's configuration, from which the tensors' type and shape follow; where
            shapes vary, as with --variable-seq-lengths, they are sent ahead of the tensors.
    """

    def __init__(self, config: ParallelConfig) -> None:
        self._channel = pipeline_channel(config.all_config or parallel_state.get_config())

    def _exchange(
        self,
        to_next: Tensor | None = None,
        to_previous: Tensor | None = None,
        from_previous: bool = False,
        from_next: bool = False,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Send what is given; (the tensor from the previous stage, the tensor from the next), None for what is not
        asked for."""
        rank, stages = self._channel.group.rank, range(self._channel.group.size)
        sends = [(to_next, rank + 1), (to_previous, rank - 1)]
        receives = [(from_previous, rank - 1), (from_next, rank + 1)]
        tensors = [(tensor, peer) for tensor, peer in sends if tensor is not None and peer in stages]
        peers = [peer for wanted, peer in receives if wanted and peer in stages]
        sending, receiving = self._channel.post(tensors, peers)
        arrived = {peer: work.wait() for peer, work in zip(peers, receiving, strict=True)}
        for work in sending:
            work.wait()
        return arrived.get(rank - 1), arrived.get(rank + 1)

    def recv_forward(self) -> Tensor | None:
        """Receive the previous stage's output; None on the first stage."""
        return self._exchange(from_previous=True)[0]

    def recv_backward(self) -> Tensor | None:
        """Receive the gradient of this stage's output from the next stage; None on the last stage."""
        return self._exchange(from_next=True)[1]

    def send_forward(self, output: Tensor) -> None:
        """Send this stage's output to the next stage; on the last stage send nothing."""
        self._exchange(to_next=output)

    def send_backward(self, gradient: Tensor) -> None:
        """Send the gradient of this stage's input to the previous stage; on the first stage send nothing."""
        self._exchange(to_previous=gradient)

    def send_forward_recv_backward(self, output: Tensor) -> Tensor | None:
        """Send this stage's output to the next stage, and receive the gradient of an output from it; on the last stage
        send nothing and return None."""
        return self._exchange(to_next=output, from_next=True)[1]

    def send_backward_recv_forward(self, gradient: Tensor) -> Tensor | None:
        """Send the gradient of an input to the previous stage, and receive an output of that stage; on the first stage
        send nothing and return None."""
        return self._exchange(to_previous=gradient, from_previous=True)[0]

    def send_forward_recv_forward(self, output: Tensor) -> Tensor | None:
        """Send this stage's output to the next stage, if there is one, and receive the previous stage's; None on the
        first stage."""
        return self._exchange(to_next=output, from_previous=True)[0]

    def send_backward_recv_backward(self, gradient: Tensor) -> Tensor | None:
        """Send the gradient of this stage's input to the previous stage, if there is one, and receive the gradient of
        this stage's output from the next; None on the last stage."""
        return self._exchange(to_previous=gradient, from_next=True)[1]

    def send_forward_backward_recv_forward_backward(
        self, output: Tensor, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Send this stage's output to the next stage and the gradient of its input to the previous; returns (the
        previous stage's output, the gradient of this stage's output from the next stage). Where a neighbour is missing
        nothing is sent to it, and its tensor is None."""
        return self._exchange(output, gradient, True, True)

"""Real error texts, from a worker's stderr to the decision: drain the device, start again elsewhere, or give up?"""

import pytest

from shoal.agent.node.end_reasons import explain
from shoal.core.faults import Fault, Remedy, classify, remedy
from shoal.server.scheduler.restarts import Cause, Failure, judge

CUDA_TRAILER = """\
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""
C10D = "/pytorch/torch/csrc/distributed/c10d"
TORCHRUN = """\
E1117 10:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 0
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
"""

INFRASTRUCTURE = {
    "nccl remote": (
        Fault.NETWORK,
        f"torch.distributed.DistBackendError: NCCL error in: {C10D}/ProcessGroupNCCL.cpp:3356, remote process exited or"
        " there was a network error, NCCL version 2.26.2\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nsocketPollConnect: connect to 10.0.0.7<43021> returned Connection refused\n",
    ),
    "nccl remote, cut before its words": (
        Fault.NETWORK,
        "torch.distributed.DistBackendError: NCCL error in:\n"
        f"{C10D}/NCCLUtils.hpp:268\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n",
    ),
    "nccl system": (
        Fault.NETWORK,
        f"torch.distributed.DistBackendError: NCCL error in: {C10D}/NCCLUtils.cpp:77, unhandled system error (run with"
        " NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
        "Last error:\nsocketStartConnect: Connect to 10.1.2.3<51337> failed : Software caused connection abort\n",
    ),
    "nccl unhandled cuda": (
        Fault.DEVICE,
        f"torch.distributed.DistBackendError: NCCL error in: {C10D}/ProcessGroupNCCL.cpp:1970, unhandled cuda error (run"
        " with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'unspecified launch failure'\n",
    ),
    "socket timeout": (Fault.NETWORK, "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId"
                       " from [0] via c10d key-value store by store->get('0'), but store->get('0') got error: Socket Timeout\n"),
    "ecc": (Fault.DEVICE, f"RuntimeError: CUDA error: uncorrectable ECC error encountered\n{CUDA_TRAILER}"),
    "ecc, new name": (Fault.DEVICE, f"torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n{CUDA_TRAILER}"),
    "no gpus": (Fault.MACHINE, "RuntimeError: No CUDA GPUs are available\n"),
    "no device detected": (Fault.MACHINE, f"RuntimeError: CUDA error: no CUDA-capable device is detected\n{CUDA_TRAILER}"),
    "busy": (Fault.MACHINE, f"RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n{CUDA_TRAILER}"),
    "driver": (Fault.MACHINE, "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before"
               " calling NumCudaDevices() that might have already set an error? Error 35: CUDA driver version is"
               " insufficient for CUDA runtime version\n"),
    "launch failure": (Fault.DEVICE, f"RuntimeError: CUDA error: unspecified launch failure\n{CUDA_TRAILER}"),
    "xid": (Fault.DEVICE, "RuntimeError: device failure\nNVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"),
    "rendezvous timeout": (Fault.NETWORK, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n"),
    "rendezvous connection": (
        Fault.NETWORK,
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed."
        " See inner exception for details.\n",
    ),
    "store timeout": (
        Fault.NETWORK,
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.\n",
    ),
    "store wait": (Fault.NETWORK, "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/1\n"),
    "server socket": (
        Fault.NETWORK,
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port:"
        " 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n",
    ),
    "client socket": (
        Fault.NETWORK,
        "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to"
        " (10.0.0.5, 29500).\n",
    ),
    "gloo closed": (
        Fault.NETWORK,
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4821\n",
    ),
    "gloo reset": (
        Fault.NETWORK,
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [127.0.0.1]:1:"
        " Connection reset by peer\n",
    ),
    "gloo recv": (
        Fault.NETWORK,
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for"
        " recv operation to complete\n",
    ),
    "nvlink": (Fault.DEVICE, f"RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution\n{CUDA_TRAILER}"),
    "xid of a script": (Fault.DEVICE, "RuntimeError: device failure\nNVRM: Xid (PCI:0000:3b:00): 31, pid=7, MMU Fault\n"),
    "amd hardware exception": (
        Fault.DEVICE,
        "RuntimeError: HIP error: unknown\n:0:rocdevice.cpp :2660: Callback: Queue 0x7f aborting with error :"
        " HSA_STATUS_ERROR_HARDWARE_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016\n",
    ),
    "intel device lost": (Fault.DEVICE, "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)\n"),
    "driver too old": (
        Fault.MACHINE,
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by"
        " downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx\n",
    ),
    "no driver": (
        Fault.MACHINE,
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver\n",
    ),
    "busy, older words": (Fault.MACHINE, f"RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable\n{CUDA_TRAILER}"),
    "forward compatibility": (
        Fault.MACHINE,
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling"
        " NumCudaDevices() that might have already set an error? Error 804: forward compatibility was attempted on non"
        " supported HW\n",
    ),
    "driver combination": (
        Fault.MACHINE,
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda"
        " driver combination\n",
    ),
    "file server away": (Fault.MACHINE, "OSError: [Errno 116] Stale file handle: '/data/train/000.tar'\n"),
    "infiniband": (
        Fault.NETWORK,
        f"torch.distributed.DistBackendError: NCCL error in: {C10D}/ProcessGroupNCCL.cpp:2006\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nNET/IB : Got completion from peer 10.0.0.4<41245> with status=12 opcode=32601 len=0 vendor err 129\n",
    ),
    "gloo mesh": (
        Fault.NETWORK,
        "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no error\n",
    ),
    "barrier": (
        Fault.NETWORK,
        "RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from"
        " rank 0. Please check rank 0 logs for faulty rank.\n",
    ),
    "rendezvous closed": (Fault.NETWORK, "torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n"),
}  # fmt: skip
DRAINED = {"ecc", "ecc, new name", "xid", "nvlink"}
"""Errors that no script can cause."""

OWN = {
    "oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB\n",
    "oom below nccl": (
        f"torch.distributed.DistBackendError: NCCL error in: {C10D}/NCCLUtils.cpp:77, unhandled cuda error, NCCL version"
        " 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
        "Failed to CUDA calloc async 608 bytes\nCuda failure 2 'out of memory'\n"
    ),
    "nccl used wrongly": (
        f"torch.distributed.DistBackendError: NCCL error in: {C10D}/NCCLUtils.cpp:77, invalid usage (run with"
        " NCCL_DEBUG=WARN for details), NCCL version 2.21.5\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5000\n"
    ),
    "shapes": "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x10 and 20x5)\n",
    "assertion": "AssertionError: vocab_size must be positive\n",
    "device-side assertion": f"RuntimeError: CUDA error: device-side assert triggered\n{CUDA_TRAILER}",
    "illegal access": f"RuntimeError: CUDA error: an illegal memory access was encountered\n{CUDA_TRAILER}",
    "mismatched collectives": (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective:"
        " CollectiveFingerPrint(OpType=ALLREDUCE, TensorShape=[10]), but Rank 1 is running collective: BROADCAST.\n"
    ),
    "misaligned": f"RuntimeError: CUDA error: misaligned address\n{CUDA_TRAILER}",
    "no kernel": f"RuntimeError: CUDA error: no kernel image is available for execution on the device\n{CUDA_TRAILER}",
    "loader without shared memory": (
        "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that dataloader's workers"
        " are out of shared memory. Please try to raise your shared memory limit.\n"
    ),
    "cpu torch": "AssertionError: Torch not compiled with CUDA enabled\n",
    "state dict": "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for w: copying a param\n",
}


def stderr(message: str, prefix: str = "") -> str:
    text = f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\n{message}'
    return "warming up\n" + "".join(f"{prefix}{line}\n" for line in text.splitlines())


def decision(text: str, code: int = 1) -> tuple[str, bool]:
    reason = explain(code, text)
    cause = Cause.ERROR if code > 0 else Cause.SIGNAL
    verdict = judge(Failure(cause=cause, reason=reason, progressed=False, restarts_used=0, max_restarts=3))
    return reason, verdict.restart


@pytest.mark.parametrize("name", INFRASTRUCTURE)
def test_a_fault_of_the_machines_or_their_network_is_tried_again(name):
    kind, message = INFRASTRUCTURE[name]
    for text in (stderr(message), stderr(message, "[rank3]: "), stderr(message) + TORCHRUN):
        reason, restarts = decision(text)
        assert restarts, reason
        assert classify(reason) is kind
        assert remedy(reason) is (Remedy.DRAIN if name in DRAINED else Remedy.ELSEWHERE), reason
        assert len(reason) <= 500 and "\n" not in reason


@pytest.mark.parametrize("name", OWN)
def test_an_error_of_the_job_itself_is_final(name):
    for text in (stderr(OWN[name]), stderr(OWN[name], "[rank3]: "), stderr(OWN[name]) + TORCHRUN):
        reason, restarts = decision(text)
        assert not restarts, reason
        assert remedy(reason) is Remedy.GIVE_UP


def test_an_infrastructure_fault_is_not_tried_for_ever():
    reason = explain(1, stderr(INFRASTRUCTURE["ecc"][1]))
    last = Failure(cause=Cause.ERROR, reason=reason, progressed=False, restarts_used=3, max_restarts=3)
    assert not judge(last).restart


def test_an_abort_is_explained_by_the_fault_and_not_by_its_last_stack_frame():
    text = (
        "[rank0]:[E1117 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7,"
        " OpType=ALLREDUCE) ran for 600000 milliseconds before timing out.\n"
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "frame #0: c10::Error::Error(...) + 0x96 (0x7f in libc10.so)\nframe #1: clone + 0x43 (0x7f in libc.so.6)\n"
    )
    reason, restarts = decision(text, -6)
    assert restarts and classify(reason) is Fault.NETWORK
    assert reason.startswith("killed by SIGABRT: ") and "collective operation timeout" in reason


def test_a_launchers_own_exception_does_not_hide_that_of_its_worker():
    assert explain(1, stderr("ValueError: bad lr\n") + TORCHRUN) == "ValueError: bad lr"
    assert explain(1, TORCHRUN).startswith("torch.distributed.elastic.multiprocessing.errors.ChildFailedError")

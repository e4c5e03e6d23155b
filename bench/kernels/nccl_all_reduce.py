"""Time of NCCL's all-reduce of a decode step's rows, replayed from a CUDA graph: what the exchange of
the kernels is compared with.

    python3 bench/kernels/nccl_all_reduce.py [--hidden 6144] [--rows 1,2,4,8,16] [--json FILE]

One process a device, float32 sums as the kernels exchange them, `CALLS` dependent all-reduces a graph,
medians. Needs PyTorch with NCCL and at least two devices.
"""
import argparse
import json
import os
import statistics

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

CALLS = 114  # two for each of 57 layers


def call_us(graph, stream, repeats):
    """Microseconds of one of a graph's CALLS: the median of its replays after three to warm up."""
    times = []
    for _ in range(repeats + 3):
        dist.barrier()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record(stream)
        graph.replay()
        end.record(stream)
        stream.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / CALLS)
    return statistics.median(times[3:])


def measure(rows, hidden, repeats):
    x = torch.randn(rows, hidden, device="cuda") * 1e-3
    expected = x.clone()
    dist.all_reduce(expected)
    again = x.clone()
    dist.all_reduce(again)  # also warms this size up
    same = torch.equal(expected, again)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        y = x.clone()
        dist.all_reduce(y)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(CALLS):
                dist.all_reduce(y)
                y.mul_(1.0 / dist.get_world_size())
        together = call_us(graph, stream, repeats)
        # The scaling between two all-reduces, alone.
        scale = torch.cuda.CUDAGraph()
        with torch.cuda.graph(scale, stream=stream):
            for _ in range(CALLS):
                y.mul_(1.0)
        alone = call_us(scale, stream, repeats)
    return {"rows": rows, "us_with_scaling": round(together, 2),
            "us_scaling_alone": round(alone, 2),
            "us_all_reduce": round(together - alone, 2),
            "same_bits_twice": same}


def run(rank, world, options, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    results = [measure(int(rows), options.hidden, options.repeats)
               for rows in options.rows.split(",")]
    if rank == 0:
        report = {"nccl": ".".join(map(str, torch.cuda.nccl.version())), "torch": torch.__version__,
                  "devices": [torch.cuda.get_device_name(i) for i in range(world)],
                  "hidden": options.hidden, "calls_a_graph": CALLS, "results": results}
        print(json.dumps(report, indent=1))
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(report, file, indent=1)
                file.write("\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--hidden", type=int, default=6144)
    parser.add_argument("--rows", default="1,2,4,8,16")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--port", type=int, default=29571)
    parser.add_argument("--json")
    chosen = parser.parse_args()
    count = torch.cuda.device_count()
    if count < 2:
        raise SystemExit(f"needs 2 devices, there {'is' if count == 1 else 'are'} {count}")
    mp.spawn(run, args=(count, chosen, chosen.port), nprocs=count)

#include "backend/cuda/native.h"

#include <algorithm>
#include <new>
#include <string>

#include "backend/cuda/chain.h"

namespace monolayer::cuda {

Status Chain::open_device() {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0)
    return {Code::kUnsupported, "CUDA", std::string("no device: ") + cudaGetErrorString(found)};
  if (options_.device >= devices)
    return {
        Code::kUnsupported, "CUDA",
        "device " + std::to_string(options_.device) + " is not one of " + std::to_string(devices)};
  const int device = options_.device;
  ML_CUDA(cudaSetDevice(device));
  int major = 0;
  int minor = 0;
  ML_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  ML_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  if (major != 9 || minor != 0)
    return {Code::kUnsupported, "CUDA",
            "the device is sm_" + std::to_string(major) + std::to_string(minor) +
                ", the kernels are for sm_90a"};
  int processors = 0;
  ML_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  blocks_ = processors / options_.virtual_ranks;
  ML_CUDA(cudaDeviceGetAttribute(&shared_limit_, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  int reserved = 0;
  ML_CUDA(cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device));
  if (reserved != static_cast<int>(kSharedBase))
    return {Code::kUnsupported, "device",
            "the system keeps " + std::to_string(reserved) +
                " bytes of a block's shared memory, the kernels are made for " +
                std::to_string(kSharedBase)};
  ML_CUDA(prepare_kernels(shared_limit_));
  ML_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  ML_CUDA(cudaMallocHost(reinterpret_cast<void**>(&host_step_), sizeof(Step)));
  return {};
}

Status Chain::open(const MakeRank& make) {
  const int size = group_size();
  const int first = options_.group != nullptr ? options_.group->rank() : 0;
  const auto load = [&]() -> Status {
    if (config_.num_layers > kMailLayers && size > 1)
      return {Code::kUnsupported, "num_hidden_layers",
              std::to_string(config_.num_layers) + ", ranks exchange for at most " +
                  std::to_string(kMailLayers)};
    ML_RETURN_IF_ERROR(open_device());
    for (int r = first; r < first + options_.virtual_ranks; ++r) {
      ML_ASSIGN_OR_RETURN(const m3::RankShape shape, m3::rank_shape(config_, r, size));
      ML_ASSIGN_OR_RETURN(auto rank, make(shape));
      ranks_.push_back(std::move(rank));
    }
    const auto shards = static_cast<std::size_t>(options_.virtual_ranks) * kMaxRows *
                        static_cast<std::size_t>(config_.vocab_size / size) * sizeof(float);
    ML_CUDA(cudaMallocHost(reinterpret_cast<void**>(&shards_), shards));
    const auto best = static_cast<std::size_t>(options_.virtual_ranks) * kMaxRows;
    ML_CUDA(cudaMallocHost(reinterpret_cast<void**>(&host_best_), best * sizeof(std::uint64_t)));
    return {};
  };
  const Status loaded = load();
  const auto hidden = static_cast<int>(config_.hidden_size);
  if (options_.group != nullptr) {
    ML_RETURN_IF_ERROR(options_.group->agree(loaded).status);
    if (size == 1) return {};
    ML_ASSIGN_OR_RETURN(peers_, Peers::connect(*options_.group, hidden));
    Status ready = options_.group->agree(peers_->set_steps(options_.steps_done)).status;
    if (ready.ok()) return {};
    ML_RETURN_IF_ERROR(peers_->close());  // collective as well: every rank comes here
    return ready;
  }
  ML_RETURN_IF_ERROR(loaded);
  if (size == 1) return {};
  auto peers =
      random_.stand_in > 1 ? Peers::standing_in(size, hidden) : Peers::on_one_device(size, hidden);
  ML_ASSIGN_OR_RETURN(peers_, std::move(peers));
  return peers_->set_steps(options_.steps_done);
}

Status Chain::close() {
  const auto drain = [&]() -> Status {
    ML_CUDA(cudaSetDevice(options_.device));
    if (stream_ != nullptr) ML_CUDA(cudaStreamSynchronize(stream_));
    return {};
  };
  const Status drained = drain();
  // Peers must neither wait for this rank nor free what its device may still write to.
  if (!drained.ok() && options_.group != nullptr) options_.group->fail(drained);
  drop_graphs();
  const Status closed = peers_ != nullptr ? peers_->close() : Status{};
  return drained.ok() ? closed : drained;
}

template <typename T>
Status Chain::allocate(T*& out, std::int64_t count, const char* what) {
  ML_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                      DeviceBuffer::create(static_cast<std::size_t>(count) * sizeof(T), what));
  out = buffer.as<T>();
  buffers_.push_back(std::move(buffer));
  return {};
}

void Chain::drop_graphs() {
  for (auto& plans : graphs_) {
    for (cudaGraphExec_t& graph : plans) {
      if (graph != nullptr) cudaGraphExecDestroy(graph);
      graph = nullptr;
    }
  }
}

Status Chain::bind_ranks(const cpu::CachePool& cache) {
  const auto count = static_cast<std::int64_t>(ranks_.size());
  const std::int64_t pages = cache.pages();
  ML_RETURN_IF_ERROR(allocate(device_step_, 1, "CUDA step"));
  ML_RETURN_IF_ERROR(allocate(device_pages_, kMaxRows * pages, "CUDA block tables"));
  ML_RETURN_IF_ERROR(allocate(best_, count * kMaxRows, "CUDA tokens"));
  ML_RETURN_IF_ERROR(allocate(barriers_, count * kHandOffWords, "CUDA barrier"));
  Record* record = nullptr;
  ML_RETURN_IF_ERROR(allocate(record, 1, "CUDA barrier"));
  ML_CUDA(cudaMemsetAsync(record, 0, sizeof(Record), stream_));
  if (count > 1) ML_RETURN_IF_ERROR(allocate(device_params_, count, "CUDA ranks"));
  std::vector<Params> all;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = *ranks_[i];
    ML_RETURN_IF_ERROR(rank.bind(cache.options(), pages));
    if (random_.seed != 0) ML_RETURN_IF_ERROR(rank.fill_caches(random_.seed));
    Params& p = rank.params();
    p.step = device_step_;
    p.pages = device_pages_;
    p.barrier = barriers_ + static_cast<std::ptrdiff_t>(i) * kHandOffWords;
    p.record = record;
    p.deadline_ns = options_.deadline_ns;
    p.stall_block = rank.shape().rank == options_.stall_rank ? options_.stall_block : -1;
    p.stall_stage = options_.stall_stage;
    p.stall_step = -1;
    if (peers_ != nullptr && options_.stall_step != 0)
      p.stall_step = static_cast<std::int32_t>(mail_step_tag(options_.stall_step));
    if (peers_ != nullptr) {
      p.mail = peers_->mailbox(static_cast<int>(i));
      p.mail.delay_ns = options_.delay_ns;
      p.record = peers_->record(static_cast<int>(i));
    }
    if (count > 1) p.rank_params = device_params_;
    p.local_ranks = static_cast<std::int32_t>(count);
    all.push_back(p);
  }
  if (count > 1)
    ML_CUDA(cudaMemcpy(device_params_, all.data(), all.size() * sizeof(Params),
                       cudaMemcpyHostToDevice));
  // Copies from pageable memory may end after their call, and this stream does not wait for them.
  ML_CUDA(cudaDeviceSynchronize());
  return {};
}

// Caches and step buffers for a pool of this shape.
Status Chain::bind(const cpu::CachePool& cache) {
  drop_graphs();
  bound_ = nullptr;
  buffers_.clear();
  ML_RETURN_IF_ERROR(bind_ranks(cache));
  for (const int columns : kColumnPlans) {
    Params planned = params();
    if (!divide_memory(columns, planned))
      return {Code::kUnsupported, "CUDA",
              "activations of " + std::to_string(columns) + " rows leave no room for weights in " +
                  std::to_string(shared_limit_) + " bytes of shared memory"};
    if (!may_fuse()) continue;
    int resident = 0;
    ML_CUDA(fused_occupancy(planned, &resident));
    if (resident < 1)
      return {Code::kUnsupported, "CUDA",
              "the fused kernel needs one resident block per multiprocessor, none fits"};
  }
  bound_ = &cache;
  bound_pages_ = cache.pages();
  bound_options_ = cache.options();
  return {};
}

bool Chain::divide_memory(int rows, Params& p) const {
  const DeviceModel& model = ranks_.front()->model();
  return plan_shared_memory(rows, std::max(model.hidden_row_bytes(), model.other_row_bytes()),
                            down_bytes(model.layers(), p.shape.chosen, rows), shared_limit_, p);
}

std::string Chain::kernel_family() const {
  const std::string any = "kernels for any shape";
  if (ranks_.empty() || layers().empty()) return {};
  if (options_.any_kernels) return any + " (as asked)";
  const auto other = std::find_if(layers().begin(), layers().end(), [&](const Layer& l) {
    return l.moe != 0 && !m3_layer(params().shape, l);
  });
  if (other != layers().end())
    return any + " (those for MiniMax-M3 do not fit: " + m3_refusal(params().shape, *other) + ")";
  if (blocks_ < kLeastM3Blocks)
    return any + " (those for MiniMax-M3 need " + std::to_string(kLeastM3Blocks) +
           " multiprocessors a rank, there are " + std::to_string(blocks_) + ")";
  return "kernels for MiniMax-M3";
}

Result<std::unique_ptr<cpu::Native>> create_native(const m3::ModelConfig& config,
                                                   const m3::ModelWeights& weights,
                                                   const NativeOptions& options) {
  const int ranks = options.virtual_ranks;
  if (ranks < 1 || ranks > kMaxRanks || (ranks > 1 && options.group != nullptr))
    return Status(Code::kInvalidArgument, "virtual_ranks",
                  std::to_string(ranks) + ": 1 to " + std::to_string(kMaxRanks) +
                      ", and 1 in a group of devices");
  try {
    auto chain = std::make_unique<Chain>(config, options, RandomOptions{.seed = 0});
    ML_RETURN_IF_ERROR(chain->open([&](const m3::RankShape& shape) {
      return Rank::create(config, shape,
                          [&] { return DeviceModel::create(config, weights, shape); });
    }));
    return std::unique_ptr<cpu::Native>(std::move(chain));
  } catch (const std::bad_alloc&) {
    const Status status(Code::kResourceExhausted, "CUDA chain", "no host memory for it");
    // Peers must not wait for what this rank will not do any more.
    if (options.group != nullptr) options.group->fail(status);
    return status;
  }
}

}  // namespace monolayer::cuda

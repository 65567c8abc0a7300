// SPDX-License-Identifier: Apache-2.0
#include "core/sleep/file_store.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

namespace weir {
namespace {

constexpr Bytes kUnit = SleepFile::kUnit;
constexpr std::size_t kBuffersInASlab = HostStore::kSlab / FileStore::kBlock;

Bytes block_of(const FileStore::Piece& piece) {
  return round_down(piece.offset, FileStore::kBlock);
}

void* at(void* memory, Bytes offset) { return (Address::of(memory) + offset).pointer(); }

}  // namespace

FileStore::~FileStore() {
  // What the device refuses here is lost: nobody is left to tell.
  for (const EventHandle event : events_) (void)device_.destroy_event(event);
}

Result<std::vector<FileStore::Part>> FileStore::place(const std::string& folder,
                                                      const std::vector<Range>& ranges) {
  std::vector<Part> parts;
  Bytes end;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    for (Range left = ranges[i]; left.size > 0_B;) {
      const Bytes size = std::min(left.size, kBlock - end % kBlock);
      parts.push_back({{left.begin, size}, {0, end, size}, i});
      end += size;
      left = {left.begin + size, left.size - size};
    }
  }
  const Bytes size = round_up(end, kUnit);
  SleepFiles* const folders = device_.files();
  if (folders == nullptr) {
    return Error(ErrorCode::unavailable, device_.name() + " has no files for memory that sleeps");
  }
  Result<std::unique_ptr<SleepFile>> opened = folders->open(folder, size);
  if (!opened) return std::move(opened).error();
  const std::lock_guard lock(mutex_);
  const auto gap =
      std::find_if(files_.begin(), files_.end(), [](const File& file) { return !file.open; });
  const auto number = static_cast<std::size_t>(gap - files_.begin());
  if (gap == files_.end()) files_.emplace_back();
  files_[number] = {*std::move(opened), size, end};
  for (Part& part : parts) part.piece.file = number;
  return parts;
}

void FileStore::give(const Piece& piece) {
  const std::lock_guard lock(mutex_);
  files_[piece.file].taken -= piece.size;
}

void FileStore::close_unused() {
  const std::lock_guard lock(mutex_);
  for (File& file : files_) {
    if (file.taken == 0_B) file = {};
  }
}

Bytes FileStore::held() const {
  const std::lock_guard lock(mutex_);
  Bytes bytes;
  for (const File& file : files_) bytes += file.size;
  return bytes;
}

bool FileStore::through_cache() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(files_.begin(), files_.end(),
                     [](const File& file) { return file.open && !file.open->direct(); });
}

SleepFile& FileStore::file_of(const Piece& piece) const {
  const std::lock_guard lock(mutex_);
  return *files_[piece.file].open;
}

// In order of the files, and of the blocks in them.
std::vector<FileStore::Group> FileStore::by_block(const std::vector<Part>& parts) {
  std::map<std::pair<std::size_t, Bytes>, Group> blocks;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    blocks[{parts[i].piece.file, block_of(parts[i].piece)}].push_back(i);
  }
  std::vector<Group> groups;
  for (auto& [block, group] : blocks) {
    std::sort(group.begin(), group.end(), [&](std::size_t a, std::size_t b) {
      return parts[a].piece.offset < parts[b].piece.offset;
    });
    groups.push_back(std::move(group));
  }
  return groups;
}

Status FileStore::write(const std::vector<Part>& parts) {
  if (parts.empty()) return {};
  const std::vector<Group> groups = by_block(parts);
  Status written = run(
      groups.size(), Device::Direction::to_host,
      [&](const Worker& worker, std::size_t i) { return write_block(worker, parts, groups[i]); });
  return written ? file_of(parts.front().piece).sync() : std::move(written);
}

Status FileStore::read(const std::vector<Part>& parts, std::vector<bool>& there) {
  const std::vector<Group> groups = by_block(parts);
  std::mutex there_mutex;
  there.assign(parts.size(), false);
  return run(groups.size(), Device::Direction::to_device, [&](const Worker& worker, std::size_t i) {
    Status read = read_block(worker, parts, groups[i]);
    const std::lock_guard lock(there_mutex);
    for (const std::size_t part : groups[i]) there[part] = read.ok();
    return read;
  });
}

Status FileStore::run(std::size_t groups, Device::Direction direction,
                      const std::function<Status(const Worker&, std::size_t)>& work) {
  const std::size_t most = std::min(groups, kMostBuffers);
  Crew crew;
  Status status = gather(std::min<std::size_t>(most, device_.host_threads() + 1), crew);
  std::mutex status_mutex;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stop{!status.ok()};
  const auto take_part = [&](const Worker& worker) {
    while (!stop.load()) {
      const std::size_t number = next.fetch_add(1);
      if (number >= groups) return;
      Status done = work(worker, number);
      if (done) continue;
      stop.store(true);
      const std::lock_guard lock(status_mutex);
      if (status) status = std::move(done);
    }
  };
  std::vector<std::thread> threads;
  try {
    for (std::size_t i = 1; i < crew.workers.size(); ++i) {
      threads.emplace_back([&, i] { take_part(crew.workers[i]); });
    }
  } catch (const std::system_error&) {
    // The process may have no more threads: those that there are do it.
  }
  if (!crew.workers.empty()) take_part(crew.workers.front());
  for (std::thread& thread : threads) thread.join();
  dismiss(crew, status.ok() || wait_for_copies(direction));
  return status;
}

Status FileStore::gather(std::size_t count, Crew& crew) {
  for (std::size_t i = 0; i < count; ++i) {
    if (i % kBuffersInASlab == 0) {
      Result<HostStore::Piece> slab = host_.take_slab();
      if (!slab) return std::move(slab).error();
      crew.slabs.push_back(*slab);
    }
    Result<EventHandle> event = device_.create_event();
    if (!event) return std::move(event).error();
    crew.workers.push_back({at(crew.slabs.back().memory, kBlock * (i % kBuffersInASlab)), *event});
  }
  return {};
}

// A buffer that a copy may still use is nobody's until the store goes.
void FileStore::dismiss(Crew& crew, bool is_quiet) {
  if (is_quiet) {
    for (const HostStore::Piece& slab : crew.slabs) host_.give(slab);
  }
  const std::lock_guard lock(mutex_);
  for (const Worker& worker : crew.workers) events_.push_back(worker.event);
  std::erase_if(events_, [&](EventHandle event) { return device_.destroy_event(event).ok(); });
}

// After an error there may be copies that no event is behind.
bool FileStore::wait_for_copies(Device::Direction direction) {
  if (device_.synchronize_context()) return true;
  const Result<EventHandle> event = device_.create_event();
  if (!event) return false;
  const Result<Stream> stream = device_.copy_stream(direction);
  const bool done = stream && device_.record(*event, *stream) && device_.synchronize(*event);
  const std::lock_guard lock(mutex_);
  events_.push_back(*event);
  return done;
}

Status FileStore::finish_copies(const Worker& worker, Stream stream) {
  Status recorded = device_.record(worker.event, stream);
  return recorded ? device_.synchronize(worker.event) : std::move(recorded);
}

Status FileStore::write_block(const Worker& worker, const std::vector<Part>& parts,
                              const Group& group) {
  const Result<Stream> stream = device_.copy_stream(Device::Direction::to_host);
  if (!stream) return stream.error();
  const Bytes block = block_of(parts[group.front()].piece);
  Bytes end;
  for (const std::size_t i : group) {
    const auto& [home, piece, range] = parts[i];
    if (Status copied = device_.copy_to_host(at(worker.buffer, piece.offset - block), home.begin,
                                             home.size, *stream);
        !copied) {
      return copied;
    }
    end = piece.offset + piece.size;
  }
  if (Status done = finish_copies(worker, *stream); !done) return done;
  return file_of(parts[group.front()].piece)
      .write(block, worker.buffer, round_up(end - block, kUnit));
}

Status FileStore::read_block(const Worker& worker, const std::vector<Part>& parts,
                             const Group& group) {
  const Piece &first = parts[group.front()].piece, &last = parts[group.back()].piece;
  const Bytes block = block_of(first);
  const Bytes begin = round_down(first.offset, kUnit);
  const Bytes end = round_up(last.offset + last.size, kUnit);
  if (Status read = file_of(first).read(begin, at(worker.buffer, begin - block), end - begin);
      !read) {
    return read;
  }
  const Result<Stream> stream = device_.copy_stream(Device::Direction::to_device);
  if (!stream) return stream.error();
  for (const std::size_t i : group) {
    const auto& [home, piece, range] = parts[i];
    if (Status copied = device_.copy_to_device(home.begin, at(worker.buffer, piece.offset - block),
                                               home.size, *stream);
        !copied) {
      return copied;
    }
  }
  return finish_copies(worker, *stream);
}

Status FileStore::read_bytes(const Piece& piece, Bytes skip, Bytes size, void* to) {
  const Result<HostStore::Piece> slab = host_.take_slab();
  if (!slab) return slab.error();
  const Bytes from = piece.offset + skip;
  const Bytes begin = round_down(from, kUnit), end = round_up(from + size, kUnit);
  Status read = file_of(piece).read(begin, slab->memory, end - begin);
  if (read) std::memcpy(to, at(slab->memory, from - begin), size.count);
  host_.give(*slab);
  return read;
}

}  // namespace weir

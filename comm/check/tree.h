// A machine's files, below a root folder. What the kernel says in them is one line mostly, and is
// not trusted: reads are bounded, and wait for nobody.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/comm/check.h"

namespace weir::check {

inline constexpr std::size_t kMostRead = 1 << 16;  // bytes of one file
inline constexpr std::size_t kMostListed = 4096;   // names of one folder

class Tree {
 public:
  explicit Tree(std::string root) : root_(std::move(root)) {}

  // A file's text without the white space at its ends. Absent: there is no such file, it has
  // nothing to say (a cable that is out has no speed), or it can't be read, which is noted.
  std::optional<std::string> text(const std::string& path);
  std::optional<int> number(const std::string& path);
  // The names in a folder, in order of the alphabet; empty: none, or no such folder.
  std::vector<std::string> list(const std::string& path);
  bool exists(const std::string& path) const;
  bool is_folder(const std::string& path) const;
  // The last part of where a link leads; empty: no link.
  std::string target_name(const std::string& path) const;
  std::string at(const std::string& path) const { return root_ + path; }

  const std::vector<Unread>& unread() const { return unread_; }

 private:
  std::optional<std::string> read(const std::string& path);
  void note(const std::string& path, int error);

  const std::string root_;  // without a slash at its end: "" is the machine's own
  std::vector<Unread> unread_;
};

std::string_view trimmed(std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);

}  // namespace weir::check

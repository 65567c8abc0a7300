// Text for people: aligned, wrapped, at most 100 columns wide. What comes from files and the
// environment is made printable first.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weir::check {

inline constexpr std::size_t kWidth = 100;  // columns

// One '?' for each byte that is no printable ASCII character.
std::string printable(std::string_view text);
// `head`, then `text` in lines that begin at column `indent`; a word that is too long is broken.
std::string paragraph(std::string_view head, std::string_view text, std::size_t indent);
// Rows of cells in columns, after two spaces; the first row is the head. The last column is cut
// where it would be too wide, and the others at 32.
std::string table(std::vector<std::vector<std::string>> rows);

}  // namespace weir::check

// report.html: a run's memory on one page that needs nothing else – no network, no library, no server. The page's own files
// (report.html, report.css and the .js beside this header) are compiled in; the data is a memory.json put inside.
#pragma once

#include <string>

namespace refrain {

// The page for one memory.json. Nothing of the data can become markup: it lies in a JSON block with every <, > and & written as
// an escape, and the script puts text on the page as text. The peak, its kinds and its groups are also written as plain text
// for readers without JavaScript. Throws DataError when the text is not a JSON object with a peak.
std::string report_html(const std::string& memory_json);

}  // namespace refrain

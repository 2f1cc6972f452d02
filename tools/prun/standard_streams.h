// Standard input, output and error, which whoever started this program may have closed.
#pragma once

namespace prun {

// Opens /dev/null in place of those that are closed. Else the next file that is opened becomes standard error, and
// words for the user land in it. First thing in main.
void open_closed_streams();
// The end of main: 1 instead of 0 where standard output could not be written, which is said on standard error.
int code_with_output(int code);

}  // namespace prun

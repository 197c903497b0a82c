// SIGINT, SIGTERM and SIGHUP (a closed terminal) ask a run to stop after the step it is in; a second one ends the process as usual.
#pragma once

namespace refrain::apps {

void catch_interrupts();
bool is_interrupted();

}  // namespace refrain::apps

# find_package(prun): what a transport outside prun's own build needs.
#
#     find_package(prun REQUIRED)
#     prun_plugin(mine SOURCES mine.cc)      # lib/prun/plugins/mine.so and mine.plugin
#
# prun::transport is the header prun/transport.h, for projects with targets of their own.
include(${CMAKE_CURRENT_LIST_DIR}/prunTargets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/plugin.cmake)

# The kinds of targets in this project, and their common flags.

add_library(prun_flags INTERFACE)
# -Wrestrict has false positives for std::string + in GCC 12 (GCC bug 105329).
set(_warnings -Wall -Wextra -Wshadow -Wno-missing-field-initializers -Wno-restrict -fno-plt)
if(PRUN_WERROR)
  list(APPEND _warnings -Werror)
else()
  # dev and CI check format strings at compile time. A release build skips that, which saves 5 % of its time.
  target_compile_definitions(prun_flags INTERFACE FMT_CONSTEVAL=)
endif()
target_compile_options(prun_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:${_warnings}>)
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC treats sources included by a unity source as headers. No garbage collection below 600 MB, for speed.
  target_compile_options(prun_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage;--param=ggc-min-heapsize=600000>)
endif()
if(PRUN_SANITIZE)
  string(REPLACE ";" "," _sanitize "${PRUN_SANITIZE}")
  target_compile_options(prun_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${_sanitize};-fno-omit-frame-pointer;-fno-sanitize-recover=all>
    # The vptr check makes system calls, which the script's sandbox kills.
    $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=vptr>
    # These checks of each access take 40 % of GCC's time. The fuzzer, which Clang compiles, has them; the address
    # sanitizer stops at null pointers, too.
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-sanitize=null,alignment,object-size,vptr>)
  target_link_options(prun_flags INTERFACE -fsanitize=${_sanitize})
endif()
find_program(PRUN_CCACHE ccache)
if(PRUN_CCACHE)
  # Without CCACHE_SLOPPINESS, ccache does not cache sources with precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${PRUN_CCACHE})
endif()
find_program(PRUN_MOLD mold)
if(PRUN_MOLD AND NOT PRUN_SANITIZE)
  target_link_options(prun_flags INTERFACE -fuse-ld=mold)
endif()

include(precompiled)  # prun_precompiled
add_custom_target(plugins)     # all transports
add_custom_target(devices)     # all devices that are not in prun itself
add_custom_target(fast_tests)    # tests that also run under the address sanitizer
add_custom_target(thread_tests)  # the subset with threads, for the thread sanitizer

# Compiles this folder's targets with -O1 instead of -O2.
macro(prun_optimize_less)
  string(REPLACE -O2 -O1 CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
endmacro()

# prun_library(name SOURCES a.cc ... LINKS other ... [HEADERS a.h ...]): adds a static library of the runtime. HEADERS are
# precompiled for it alone, for libraries with flags of their own.
function(prun_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS;HEADERS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR}/runtime ${CMAKE_SOURCE_DIR}/runtime/include)
  target_link_libraries(${name} PUBLIC ${ARG_LINKS} PRIVATE prun_flags)
  prun_precompiled(${name} library ${ARG_HEADERS})
endfunction()

# The interface for plugins: the public headers, and in this build the common flags.
add_library(prun_transport INTERFACE)
add_library(prun::transport ALIAS prun_transport)
set_target_properties(prun_transport PROPERTIES EXPORT_NAME transport)
target_include_directories(prun_transport INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/runtime/include> $<INSTALL_INTERFACE:include>)
target_link_libraries(prun_transport INTERFACE $<BUILD_INTERFACE:prun_flags>)
include(plugin)         # prun_plugin
include(device_plugin)  # prun_device_plugin

# prun_test(name SOURCES a.cc ... LINKS lib ... [LABELS l ...] [TIMEOUT s]): adds a GoogleTest program as one CTest entry.
# The label `fast` adds it to the sanitizer runs of tools/test, `long` excludes it from CI.
function(prun_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINKS;LABELS;ARGS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} prun_flags GTest::gtest GTest::gtest_main)
  if(ARG_LINKS MATCHES "prun_|parity_|spdlog")  # so it links fmt and spdlog
    prun_precompiled(${name} test)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  if("fast" IN_LIST ARG_LABELS)
    add_dependencies(fast_tests ${name})
  endif()
  if("threads" IN_LIST ARG_LABELS)
    add_dependencies(thread_tests ${name})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  # By default the thread sanitizer sleeps a second at exit, and rejects threads in the child of a threaded process.
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "TSAN_OPTIONS=atexit_sleep_ms=0:die_after_fork=0")
endfunction()

# Common headers are precompiled once for each kind of target, because their flags differ; this saves a third of a build.
# Without unity builds (dev, asan) the runtime's sources do without them, so that each must include all headers it uses.

# prun_precompiled(target library|test|cases [header ...]): precompiles common headers for TARGET, which links fmt and
# spdlog; for tests and the cases of the conformance suite, GoogleTest's, too. If headers are given, TARGET has these, and
# shares them with no other target.
function(prun_precompiled target kind)
  if(NOT CMAKE_UNITY_BUILD AND kind STREQUAL "library")
    return()
  endif()
  if(ARGN)
    list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ OUTPUT_VARIABLE _headers)
    target_precompile_headers(${target} PRIVATE ${_headers})
    return()
  endif()
  if(NOT TARGET prun_headers_${kind})
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/headers.cc CONTENT "")
    add_library(prun_headers_${kind} OBJECT ${CMAKE_BINARY_DIR}/headers.cc)
    target_link_libraries(prun_headers_${kind} PRIVATE fmt::fmt spdlog::spdlog prun_flags)
    set(_headers <algorithm> <chrono> <cmath> <cstring> <filesystem> <fstream> <functional> <map> <memory> <mutex> <optional> <set>
      <string> <thread> <vector> <fmt/format.h>)
    if(NOT kind STREQUAL "library")
      target_link_libraries(prun_headers_${kind} PRIVATE GTest::gtest)
      list(APPEND _headers <gtest/gtest.h>)
    endif()
    if(kind STREQUAL "test")
      set_target_properties(prun_headers_test PROPERTIES POSITION_INDEPENDENT_CODE OFF COMPILE_OPTIONS -fPIE)
    endif()
    target_precompile_headers(prun_headers_${kind} PRIVATE ${_headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM prun_headers_${kind})
endfunction()

# What `cmake --install` puts beside the program, for people who write plans and for those who write transports.
include(CMakePackageConfigHelpers)

install(DIRECTORY lua/ DESTINATION share/prun/lua)
install(DIRECTORY plans/ DESTINATION share/prun/plans)

install(DIRECTORY runtime/include/prun DESTINATION include FILES_MATCHING PATTERN "*.h")
install(TARGETS prun_transport prun_sdk EXPORT prun ARCHIVE DESTINATION lib)
install(EXPORT prun FILE prunTargets.cmake NAMESPACE prun:: DESTINATION lib/cmake/prun)
# Versions below 1 promise nothing to each other but the ABI, which prun checks itself when it loads a plugin.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/prunConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES tools/cmake/prunConfig.cmake tools/cmake/plugin.cmake tools/cmake/device_plugin.cmake ${CMAKE_BINARY_DIR}/prunConfigVersion.cmake
  DESTINATION lib/cmake/prun)
configure_file(tools/cmake/prun.pc.in ${CMAKE_BINARY_DIR}/prun.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/prun.pc DESTINATION lib/pkgconfig)

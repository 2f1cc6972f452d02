# A transport that uses only the installed package; installed_test.py copies it next to the source.
cmake_minimum_required(VERSION 3.25)
project(outside LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
find_package(prun 0.1 REQUIRED)
find_package(OpenSSL REQUIRED)  # needed by the SDK's handshake
prun_plugin(pipe SOURCES pipe_plugin.cc LINKS prun::sdk OpenSSL::Crypto LOCAL_ONLY)

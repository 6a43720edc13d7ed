# link_plugins.cmake: links in TO to all plugins in FROM but OWN, of which TO has its own.
file(MAKE_DIRECTORY ${TO})
file(GLOB found RELATIVE ${FROM} ${FROM}/strategy_*.so ${FROM}/device_*.so)
list(REMOVE_ITEM found ${OWN})
foreach(name ${found})
  file(CREATE_LINK ${FROM}/${name} ${TO}/${name} SYMBOLIC)
endforeach()

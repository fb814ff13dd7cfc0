from tests.worlds.network import InlineLoop


def pytest_asyncio_loop_factories(config, item):
    return {"virtual": InlineLoop}

package io.kubesvc.configserver;

import java.util.Map;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.cloud.config.server.EnableConfigServer;
import org.springframework.context.annotation.Configuration;

/** A Spring Cloud config server, with no settings but those of its file. */
@Configuration(proxyBeanMethods = false)
@EnableAutoConfiguration
@EnableConfigServer
class Main {
  public static void main(String[] arguments) {
    var application = new SpringApplication(Main.class);
    application.setDefaultProperties(
        Map.of(
            "server.address", "127.0.0.1",
            "spring.main.banner-mode", "off",
            "logging.pattern.console", "%d{HH:mm:ss.SSS} %-5level %logger{0}: %m%n%xEx{3}"));
    application.run(arguments);
  }
}

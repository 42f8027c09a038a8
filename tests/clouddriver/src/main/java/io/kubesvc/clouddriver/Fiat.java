package io.kubesvc.clouddriver;

import com.netflix.spinnaker.clouddriver.security.AccountSecurityPolicy;
import java.util.Set;
import javax.servlet.Filter;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.security.config.annotation.method.configuration.EnableGlobalMethodSecurity;
import org.springframework.security.core.context.SecurityContextHolder;
import org.springframework.security.web.authentication.preauth.PreAuthenticatedAuthenticationToken;

/**
 * Fiat is on, and these users are its administrators. Clouddriver's service of stored accounts asks the policy; nobody else has
 * a right to it.
 */
@Configuration(proxyBeanMethods = false)
@ConditionalOnProperty("fiat.admins")
@EnableGlobalMethodSecurity(prePostEnabled = true)
class Fiat {
  @Bean
  AccountSecurityPolicy accountSecurity(@Value("${fiat.admins}") Set<String> admins) {
    return new AccountSecurityPolicy() {
      @Override
      public boolean isAdmin(String user) {
        return admins.contains(user);
      }

      @Override
      public boolean isAccountManager(String user) {
        return isAdmin(user);
      }

      @Override
      public Set<String> getRoles(String user) {
        return Set.of();
      }

      @Override
      public boolean canUseAccount(String user, String account) {
        return isAdmin(user);
      }

      @Override
      public boolean canModifyAccount(String user, String account) {
        return isAdmin(user);
      }
    };
  }

  @Bean
  Filter callers() {
    return (request, response, next) -> {
      var named = ((javax.servlet.http.HttpServletRequest) request).getHeader("X-SPINNAKER-USER");
      var user = named == null ? "anonymous" : named;
      SecurityContextHolder.getContext().setAuthentication(new PreAuthenticatedAuthenticationToken(user, "", Set.of()));
      try {
        next.doFilter(request, response);
      } finally {
        SecurityContextHolder.clearContext();
      }
    };
  }
}
